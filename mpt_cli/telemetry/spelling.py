"""How the settings that advice names are written where a run was begun.

Advice is written in the words of a recipe's command line (`optimizer.learning_rate`, `loss_scale=dynamic`). A script
under `mpt run` has an optimizer of its own, `mpt.fit` takes arguments, and a program with a `Recorder` does neither:
there the same setting has another name, or is an affair of the program's.
"""

import re
from dataclasses import dataclass

_VALUE = r"\d+\*\*-?\d+|\d[\d.]*(?<!\.)(?:e[+-]?\d+)?|[a-z]\w*"
SETTING = re.compile(rf"\b(loss_scale|policy|optimizer|trainer)(?:\.([a-z_]+))?(?:=({_VALUE}))?")
ANY = "…"  # stands for a value that the reader chooses


@dataclass(frozen=True)
class Setting:
    """A setting that advice names: `loss_scale.initial_scale=2**10` has a section, a key and a value, and stands in
    a run whose loss-scale mode is `mode`. Either of key and value may be missing, not both.
    """

    section: str
    key: str = ""
    value: str = ""
    mode: str = ""

    @property
    def path(self) -> str:
        return f"{self.section}.{self.key}" if self.key else self.section

    @property
    def python_value(self) -> str:
        """As Python has it, texts in quotes."""
        return f'"{self.value}"' if self.value.isidentifier() else self.value or ANY

    def __str__(self) -> str:
        return f"{self.path}={self.value}" if self.value else self.path


class Spelling:
    """As the command line of a recipe has it: what `mpt train` takes."""

    is_command = True  # whether words can be added to a command

    def write(self, setting: Setting) -> str:
        return str(setting)

    def spell(self, text: str, mode: str) -> str:
        """`text` with each setting as it is written here.

        >>> FIT.spell("Lower loss_scale.initial_scale, or set policy=mixed_bfloat16.", "dynamic")
        'Lower loss_scale={"initial_scale": …}, or set policy="mixed_bfloat16".'
        """

        def write(found: re.Match[str]) -> str:
            section, key, value = (part or "" for part in found.groups())
            return self.write(Setting(section, key, value, mode)) if key or value else found[0]

        return SETTING.sub(write, text)


class _OfProgram(Spelling):
    """Where a program has made model and optimizer itself."""

    is_command = False

    def write(self, setting: Setting) -> str:
        """What is the program's own affair wherever it is run; else as `write_own`."""
        if setting.section == "optimizer":
            return f"{str(setting).removeprefix('optimizer.')} of the optimizer"
        return self.write_own(setting)

    def write_own(self, setting: Setting) -> str:
        return str(setting)


class _OfFitOfKeras(_OfProgram):
    """Where Keras's own `fit` trains, or a loop; `is_scaled_by_program` where the program has put its optimizer into
    loss scaling itself, whose numbers are arguments of that class."""

    def __init__(self, is_scaled_by_program: bool = False) -> None:
        self.is_scaled_by_program = is_scaled_by_program

    def write_own(self, setting: Setting) -> str:
        elsewhere = {
            "policy.head": 'dtype="float32" of that layer', "policy.overrides": 'dtype="float32" of that layer',
            "trainer.epochs": "epochs of fit", "trainer.early_stopping": "keras.callbacks.EarlyStopping",
        }  # fmt: skip
        if setting.path in elsewhere:
            return elsewhere[setting.path]
        if setting.section == "loss_scale" and self.is_scaled_by_program:
            return _argument_of_class(setting)
        return self.write_taken(setting)

    def write_taken(self, setting: Setting) -> str:
        """What is said to whatever records it."""
        return str(setting)


class _OfRecorder(_OfFitOfKeras):
    def write_taken(self, setting: Setting) -> str:
        if setting.section == "policy":
            return f'keras.config.set_dtype_policy("{setting.value}")'
        if setting.section == "loss_scale":
            return f"Recorder({_argument(setting)})"
        return f'Recorder(settings={{"{setting.path}": {setting.python_value}}})'


class _OfFit(_OfProgram):
    def write_own(self, setting: Setting) -> str:
        if setting.section == "policy" and not setting.key:
            return f'policy="{setting.value}"'
        if setting.section == "loss_scale":
            return _argument(setting)
        if setting.path == "trainer.epochs":
            return "epochs"
        path = {"trainer.early_stopping": "trainer.early_stopping.patience"}.get(setting.path, setting.path)
        return f'settings={{"{path}": {setting.python_value}}}'


def _argument(setting: Setting) -> str:
    """As the argument `loss_scale` of `mpt.fit` and `Recorder`."""
    if not setting.key or setting.key == "mode":
        return f'loss_scale="{setting.value}"'
    mode = "" if setting.mode == "dynamic" else f'"mode": "{setting.mode}", '
    return f'loss_scale={{{mode}"{setting.key}": {setting.python_value}}}'


def _argument_of_class(setting: Setting) -> str:
    """As the program itself gives it to `LossScaleOptimizer`."""
    if not setting.key or setting.key == "mode":
        return f"LossScaleOptimizer(dynamic={setting.value == 'dynamic'})"
    given = f"{setting.key}={setting.value or ANY}"
    if setting.mode == "logmax":
        return f"LossScaleOptimizer(rule=LogMaxScale({given}))"
    given = f"dynamic_{given}" if setting.key == "growth_steps" else given
    return f"LossScaleOptimizer({'dynamic=False, ' if setting.mode == 'fixed' else ''}{given})"


RECIPE, FIT = Spelling(), _OfFit()
SCRIPT, SCALED_SCRIPT = _OfFitOfKeras(), _OfFitOfKeras(is_scaled_by_program=True)
RECORDER, SCALED_RECORDER = _OfRecorder(), _OfRecorder(is_scaled_by_program=True)
