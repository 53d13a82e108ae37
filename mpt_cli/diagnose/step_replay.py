"""A step that went well as far as events tell, trained again: did its loss jump, and what jumped in which layers?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import floor, log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpt_cli.diagnose.overflow import ReplayedRun
from mpt_cli.diagnose.passes import GradientPass, PassOptions, build_pass
from mpt_cli.engine.faults import build_injector
from mpt_cli.engine.probes import Probes, owners_of_weights, weights_of
from mpt_cli.precision import has_own_train_step, layers_of
from mpt_cli.precision.finite import gradient_factor
from mpt_cli.precision.gradients import largest_exponent
from mpt_cli.precision.policy import parts_of
from mpt_cli.telemetry.format import format_number, format_scale
from mpt_cli.training.checkpoint import collect_state, restore_state

LEAD = 4  # steps before it that it is held against
JUMP = 4.0  # times the most of these, an update or a gradient, of which powers of two are known; the range of the loss
LOSS_SHARE = 0.5  # of the loss before, below which no rise is a jump
OF_MODEL = "the model itself"


@dataclass(frozen=True)
class LayerSteps:
    """The weights of one layer over the steps looked at, the last of which is the one asked for.

    `gradients` are the exponents of the largest unscaled ones, None where all are 0 or can't be looked into; `updates`
    the norms of what the optimizer added, 0.0 of a skipped step; `weight_norm` that of the weights before the last.
    """

    layer: str
    gradients: tuple[int | None, ...]
    updates: tuple[float, ...]
    weight_norm: float

    @property
    def gradient_jump(self) -> float:
        """How many times the largest of the steps before, as powers of two tell; 1.0 where there is none."""
        *before, last = (None if exponent is None else float(exponent) for exponent in self.gradients)
        known = [exponent for exponent in before if exponent is not None]
        return 2.0 ** (last - max(known)) if known and last is not None else 1.0

    @property
    def update_jump(self) -> float:
        most = max(self.updates[:-1], default=0.0)
        return self.updates[-1] / most if most else 1.0

    @property
    def jumps(self) -> bool:
        return max(self.gradient_jump, self.update_jump) >= JUMP


@dataclass(frozen=True)
class StepDiagnosis:
    """The steps looked at, `steps[-1]` the one asked for; `losses` and loss `scales` of each, and its layers in the
    order in which the model has them."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    scales: tuple[float, ...]
    applied: tuple[bool, ...]
    layers: tuple[LayerSteps, ...]
    own_step_of: str | None = None

    @property
    def jumps(self) -> bool:
        """Whether the loss did; where there is none before it, that can't be told."""
        *before, last = self.losses
        low, high = min(before, default=last), max(before, default=last)
        return last - high > max(JUMP * (high - low), LOSS_SHARE * abs(high))


class _Looked(NamedTuple):
    """One step; of each weight the exponent of its largest unscaled gradient, how far it was moved, and its norm."""

    loss: float
    scale: float
    applied: bool
    gradients: list[int | None]
    moved: NDArray[Any]
    sizes: NDArray[Any]


def examine_step(replayed: ReplayedRun) -> StepDiagnosis:
    """Train up to the step and the step itself, with a look at the gradients of each batch before it."""
    model, stepper = replayed.parts.model, replayed.stepper
    own = type(model).__name__ if has_own_train_step(model) else None
    look = _gradient_pass(replayed) if own is None else None
    steps = tuple(range(stepper.step + 1, replayed.overflow.step + 1))
    looked = [_look(replayed, look) for _ in steps]
    owners = [OF_MODEL if owner is None else layers_of(model)[owner].path for owner in owners_of_weights(model)]
    layers = []
    for name in dict.fromkeys(owners):
        own_weights = [place for place, owner in enumerate(owners) if owner == name]
        layers.append(LayerSteps(
            name, tuple(_most([one.gradients[place] for place in own_weights]) for one in looked),
            tuple(float(np.linalg.norm(one.moved[own_weights])) for one in looked),
            float(np.linalg.norm(looked[-1].sizes[own_weights])),
        ))  # fmt: skip
    return StepDiagnosis(steps, tuple(one.loss for one in looked), tuple(one.scale for one in looked),
                         tuple(one.applied for one in looked), tuple(layers), own)  # fmt: skip


def _gradient_pass(replayed: ReplayedRun) -> GradientPass:
    parts, model = replayed.parts, replayed.parts.model
    injector = build_injector(parts.settings.fault, model, parts.data, 1)
    options = PassOptions(None, parts.jit_compile, injector.wrap_step if injector else None)
    return build_pass(model, Probes(parts_of(model)), options)


def _look(replayed: ReplayedRun, look: GradientPass | None) -> _Looked:
    """The next step, which is trained."""
    model, stepper = replayed.parts.model, replayed.stepper
    scale, before = float(replayed.parts.optimizer.loss_scale), _values(model)
    gradients: list[int | None] = [None] * len(before)
    if look is not None:
        state = collect_state(model)
        counted = look(stepper.peek_batches(1, whole=False)[0])
        restore_state(model, state)
        scales = [scale * gradient_factor(variable) for variable in weights_of(model)]
        gradients = [*map(_unscaled, map(largest_exponent, counted.weights), scales)]
    record = stepper.train_recorded()
    moved = [np.linalg.norm(new - old) for new, old in zip(_values(model), before, strict=True)]
    sizes = np.array([np.linalg.norm(old) for old in before])
    return _Looked(float(record.loss[0]), scale, bool(record.finite[0]), gradients, np.array(moved), sizes)


def _values(model: Any) -> list[NDArray[Any]]:
    return [np.array(variable.numpy(), "float32") for variable in weights_of(model)]


def _unscaled(exponent: int | None, scale: float) -> int | None:
    return None if exponent is None else exponent - floor(log2(scale))


def _most(exponents: Sequence[int | None]) -> int | None:
    return max((exponent for exponent in exponents if exponent is not None), default=None)


def step_content(replayed: ReplayedRun, found: StepDiagnosis) -> dict[str, Any]:
    """`layers` hold a value for each of `steps`; `layer` is the one whose gradients or updates jumped most."""
    jumped = _jumped(found)
    return {
        "status": "ok", "kind": "step", "recipe": replayed.parts.settings.recipe, "run_dir": str(replayed.run.path),
        "step": found.steps[-1], "replayed_from_step": replayed.from_step,
        "layer": jumped[0].layer if jumped else None, "loss_jumps": found.jumps,
        "explanation": [text for _, text in step_sentences(replayed, found)], **asdict(found),
    }  # fmt: skip


def _jumped(found: StepDiagnosis) -> list[LayerSteps]:
    """Those that jumped, most first."""
    jumped = [layer for layer in found.layers if layer.jumps]
    return sorted(jumped, key=lambda layer: -max(layer.gradient_jump, layer.update_jump))


def step_sentences(replayed: ReplayedRun, found: StepDiagnosis) -> list[tuple[str, str]]:
    """(label, text) in the order in which a person wants to know."""
    settings, before = replayed.parts.settings, found.losses[:-1]
    text = f"{found.steps[-1]} of {replayed.run.path}, trained again from step {replayed.from_step}, at loss scale "
    text += f"{format_scale(found.scales[-1])}: {'applied' if found.applied[-1] else 'it overflowed this time'}"
    rows = [("step", text)]
    if not settings.trainer.deterministic:
        rows.append(("", "the run was not deterministic: this is a course like it, not the same"))
    loss = f"{format_number(found.losses[-1])}"
    if before:
        low, high = format_number(min(before)), format_number(max(before))
        loss += f", {low} to {high} in the {len(before)} before: " + ("it jumped" if found.jumps else "no jump")
    rows.append(("loss", loss))
    if found.own_step_of:
        rows.append(("gradients", f"{found.own_step_of} has a train_step of its own, whose gradients can't be looked "
                     "into from outside"))  # fmt: skip
    jumped = _jumped(found)
    rows += [("layer" if jumped else "layers", _layer_sentence(layer)) for layer in jumped or found.layers]
    if jumped and len(jumped) < len(found.layers):
        rows.append(("", f"the other {len(found.layers) - len(jumped)} layers stayed within {JUMP:g} times"))
    return rows


def _layer_sentence(layer: LayerSteps) -> str:
    parts = []
    known = [exponent for exponent in layer.gradients[:-1] if exponent is not None]
    if (last := layer.gradients[-1]) is not None:
        held = f" (before at most 2^{max(known) + 1})" if known else ""
        parts.append(f"gradients of at most 2^{last + 1}{held}")
    held = f" (before at most {format_number(max(layer.updates[:-1]))})" if layer.updates[1:] else ""
    parts.append(f"update of norm {format_number(layer.updates[-1])}{held}")
    return f"{layer.layer}: {', '.join(parts)}, weights of norm {format_number(layer.weight_norm)}"
