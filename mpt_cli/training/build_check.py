"""What `mpt check --build` finds: the model built on the real data, audited, nothing trained."""

from dataclasses import dataclass

from mpt_cli.data.load import load_data
from mpt_cli.precision import LayerAudit, audit_layers
from mpt_cli.settings.schema import Settings
from mpt_cli.training.assembly import assemble
from mpt_cli.training.backend import Platform
from mpt_cli.training.scaling import describe_scaling


@dataclass(frozen=True)
class BuildCheck:
    """The audit of a model that could be trained."""

    layers: list[LayerAudit]
    parameters: int
    data: str
    loss_scale: str
    warnings: tuple[str, ...]


def check(settings: Settings, platform: Platform) -> BuildCheck:
    """Assemble the run of `settings`; raises what would keep it from starting."""
    assert settings.seed is not None
    parts = assemble(settings, platform, load_data(settings.data, settings.seed))
    return BuildCheck(
        audit_layers(parts.model), parts.model.count_params(), parts.data.description,
        describe_scaling(parts.scaling, parts.model), parts.warnings,
    )  # fmt: skip
