"""The group `loss_scale`: what every mode has, and for each mode a class with that mode's own numbers.

The numbers are those of the mode itself (`precision.scale_rules`); here they become keys.
"""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, fields, make_dataclass
from functools import cache
from typing import Any, ClassVar, Dict, Optional, Self, get_type_hints

from mpt_cli.errors import Problem
from mpt_cli.plugins import PluginError
from mpt_cli.precision.scale_rules import DynamicScale, FixedScale, LogMaxScale, NoScale, ScaleRule, load_rule
from mpt_cli.settings.key import BadValue, Key, key, read_value

AUTO = "auto"
RULES: dict[str, type[ScaleRule]] = {  # auto has the numbers of dynamic, which it may become
    AUTO: DynamicScale, **{rule.mode: rule for rule in (DynamicScale, FixedScale, LogMaxScale, NoScale)},
}  # fmt: skip
SCALE_MODES = tuple(RULES)


@dataclass
class LossScaleSettings:
    """How the loss is scaled before the backward pass, and when an unhealthy scale ends the run.

    `LossScaleSettings(mode=…)` is of the class of that mode, which has its numbers too.
    """

    rule_class: ClassVar[type[ScaleRule]] = DynamicScale

    mode: str = key(AUTO, "auto: dynamic when anything computes in float16, none otherwise", choices=SCALE_MODES)
    _: KW_ONLY
    on_overflow: str = key("skip", "what an overflow step does", choices=("skip", "apply", "abort"))
    schedules_follow: str = key("applied_steps", "steps that move learning-rate schedules: applied_steps as in Keras 3 "
                                "or all_steps as in tf.keras", choices=("applied_steps", "all_steps"))
    max_consecutive_skips: Optional[int] = key(50, "stop the run after this many skipped steps in a row, null = never",
                                               at_least=1)
    max_skips_at_floor: Optional[int] = key(10, "stop after this many steps skipped with the scale at min_scale, "
                                                "null = never", at_least=1)
    max_skip_rate: Optional[float] = key(0.5, "stop when more than this share of the last skip_rate_window steps was "
                                         "skipped, null = never", above=0, at_most=1)
    stop_on_idle_epoch: bool = key(True, "stop when an epoch ends in which every step was skipped; while the scale can "
                                   "still fall, not before 29 in a row were")
    skip_rate_window: int = key(500, "steps over which the skip rate is taken; the first window is warm-up, so that it "
                                "counts from twice as many steps on", at_least=10)
    layer_scales: Dict[str, float] = key({}, "layer name or path pattern (as in a shell: conv*) -> power of two by "
                                         "which its gradients are multiplied beside the loss scale",
                                         at_least=2.0**-64, at_most=2.0**64)

    def __new__(cls, mode: str = AUTO, *_: Any, **__: Any) -> Self:
        chosen: Any = mode_settings(mode) if cls is LossScaleSettings else cls
        return object.__new__(chosen)  # type: ignore[no-any-return]

    @property
    def rule(self) -> ScaleRule:
        """The mode with these numbers."""
        return self.rule_class(**{name: getattr(self, name) for name in self.rule_class.key_names()})

    def rule_for(self, computes_in_float16: bool) -> ScaleRule:
        """The mode of a model; the one place where `auto` is decided."""
        return NoScale() if self.mode == AUTO and not computes_in_float16 else self.rule

    @classmethod
    def keys_kept(cls) -> set[str]:
        """The keys of a recipe for another mode that still act under this one: none without scaling."""
        if not cls.rule_class.scales:
            return set()
        unused = {"on_overflow"} if len(cls.rule_class.overflow_actions) == 1 else set()
        return {declared.name for declared in fields(cls)} - unused

    @classmethod
    def foreign_key_problem(cls, mode: str, found: Key, value: Any) -> Problem | None:
        """Why a key of other modes can't be given under this one.

        None where it has its default, as files written before each mode had keys of its own have all of them.
        """
        try:
            read = read_value(found, value)
        except BadValue as bad:
            return Problem(found.path, bad.rule, value, bad.remedy)
        why = cls.rule_class.no_use if DynamicScale.mode in found.variants else f"only {found.variants[0]} uses it"
        if read == found.default or not why:
            return None
        use = DynamicScale.mode if DynamicScale.mode in found.variants else found.variants[0]
        rule = f"must be left out with loss_scale.mode={mode}: {why}."
        return Problem(found.path, rule, read, f"Use loss_scale={use}.")


def modes_that_allow(action: str) -> Iterable[str]:
    """The modes of our own under which an overflow may do this."""
    return [mode for mode, rule in RULES.items() if action in rule.overflow_actions]


@cache
def mode_settings(mode: str) -> type[LossScaleSettings]:
    """The keys of one mode; PluginError for one of another package that can't be used."""
    rule = RULES[mode] if mode in RULES else load_rule(mode)
    try:
        return _with_numbers(mode, rule)
    except (TypeError, ValueError, NameError) as error:
        raise PluginError(f"{rule.__module__}.{rule.__qualname__} has fields that can't be keys: {error}.") from error


def _with_numbers(mode: str, rule: type[ScaleRule]) -> type[LossScaleSettings]:
    hints, names = get_type_hints(rule), rule.key_names()
    numbers = [
        (declared.name, hints[declared.name], field(default=declared.default, metadata=dict(declared.metadata)))
        for declared in fields(rule)
        if declared.name in names
    ]
    own = key(mode, "auto: dynamic when anything computes in float16, none otherwise",
              choices=tuple(dict.fromkeys((*SCALE_MODES, mode))))
    namespace = {"rule_class": rule, "__module__": __name__, "__doc__": _document(mode, rule)}
    return make_dataclass(
        f"{rule.__name__}Settings", [("mode", str, own), *numbers], bases=(LossScaleSettings,), namespace=namespace
    )


def _document(mode: str, rule: type[ScaleRule]) -> str | None:
    return "Dynamic when anything computes in float16, none otherwise." if mode == AUTO else rule.__doc__
