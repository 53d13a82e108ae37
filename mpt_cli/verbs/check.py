"""Say whether a configuration is sound; with --build also whether its model can be built on its data."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from mpt_cli.errors import OK
from mpt_cli.settings import load_settings
from mpt_cli.verbs.common import add_json, add_words, print_json

if TYPE_CHECKING:
    from mpt_cli.precision import LayerAudit
    from mpt_cli.settings.schema import Settings
    from mpt_cli.training.build_check import BuildCheck

_EXAMPLES = """examples:
  mpt check conf=./mine.yaml policy=mixed_float16
  mpt check conf=digits_cnn --build      the dtype of every layer, without training"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_words(parser)
    parser.add_argument("--build", action="store_true", help="load the data, build the model and audit its dtypes")
    add_json(parser)
    parser.epilog = _EXAMPLES


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.words)
    built = None
    if arguments.build:
        from mpt_cli import afterwards

        built = afterwards.check_build(settings)
    if arguments.json:
        print_json({"status": "ok", "recipe": settings.recipe, "build": asdict(built) if built else None})
    else:
        print("\n".join([_ok_line(settings), *(_build_lines(built) if built else [])]))
    return OK


def _ok_line(settings: "Settings") -> str:
    parts = f"{settings.model.name} on {settings.data.name}, {settings.optimizer.name}"
    policy = f"{settings.policy.name} with float8" if settings.policy.float8 else settings.policy.name
    return f"ok: {settings.recipe}: {parts}, {policy}, loss scale {settings.loss_scale.mode}"


def _build_lines(built: "BuildCheck") -> list[str]:
    width = max((len(layer.path) for layer in built.layers), default=0)
    policies = max((len(layer.policy) for layer in built.layers), default=16)
    return [
        f"data: {built.data}",
        f"loss scale: {built.loss_scale}",
        f"{'layer':<{width}}  {'kind':<20} {'policy':<{policies}} {'computes':<9} {'variables':<10} {'parameters':>12}",
        *(_layer_line(layer, width, policies) for layer in built.layers),
        f"{built.parameters:,} parameters",
        *(f"warning: {warning}" for warning in built.warnings),
    ]


def _layer_line(layer: "LayerAudit", width: int, policies: int) -> str:
    dtypes = f"{layer.policy:<{policies}} {layer.compute_dtype:<9} {layer.variable_dtype:<10}"
    remarks = "; ".join(word for word in ("head" if layer.is_head else "", layer.risk, layer.no_float8) if word)
    return f"{layer.path:<{width}}  {layer.kind:<20} {dtypes} {layer.parameters:>12,}  {remarks}".rstrip()
