"""The package as a library: every public name has an example."""

from mpt_cli import precision
from mpt_cli.precision import gradients

WITHOUT_EXAMPLE = {"LayerAudit", "Finding", "ScaleRule", "StepRecord", "SafeScales"}  # plain results and an interface


def test_every_public_name_has_an_example():
    shown = {name: getattr(part, name) for part in (precision, gradients) for name in part.__all__}
    lacking = {name for name, value in shown.items() if callable(value) and ">>> " not in (value.__doc__ or "")}
    assert lacking <= WITHOUT_EXAMPLE
