"""What a run trains, wherever it came from: a model in its dtypes, its loss and metrics, an optimizer, and the data.

All that follows (engine, feeds, trainer, checkpoints, telemetry) is one path for every program. Keras is imported
inside functions: a program exists before the backend is chosen.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.variants import GIVEN, PYTHON
from mpt_cli.training.backend import Platform, prepare_backend

if TYPE_CHECKING:
    from mpt_cli.data.examples import DataSet


@dataclass(frozen=True)
class Program(ABC):
    """What is trained, under `settings`, which hold all the rest and are what the record repeats."""

    settings: Settings

    @property
    def repeatable(self) -> bool:
        """Whether the settings say it all."""
        return True

    def with_settings(self, settings: Settings) -> Self:
        """The same under other settings, such as those with the seed that was drawn."""
        return replace(self, settings=settings)

    @abstractmethod
    def check_present(self) -> None:
        """DataError where the data can't be there; before seconds are spent on importing Keras."""

    @abstractmethod
    def prepare_backend(self) -> Platform:
        """Have Keras imported, on the backend and device of the run."""

    @abstractmethod
    def load_data(self) -> "DataSet":
        """Training and validation data, the same each time."""

    @abstractmethod
    def build_model(self, data: "DataSet") -> Any:
        """The model with its layers in the dtypes of the run, without optimizer and loss."""

    @abstractmethod
    def build_optimizer(self, total_steps: int | None) -> Any:
        """The Keras optimizer that loss scaling is put around; `total_steps` is how long a schedule may run."""

    @abstractmethod
    def compile(self, model: Any, data: "DataSet", optimizer: Any) -> None:
        """Give `model` its loss, its metrics and `optimizer`, with all variables made."""

    @abstractmethod
    def set_learning_rate(self, optimizer: Any, total_steps: int | None, factor: float) -> bool:
        """Give the optimizer of a run that goes on `factor` times its learning rate.

        Returns whether steps compiled before must be compiled again.
        """

    @abstractmethod
    def warnings(self, model: Any, data: "DataSet") -> list[str]:
        """What is unusual about model, optimizer and data together; ConfigError for what can't work."""

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The model in a word."""

    @abstractmethod
    def describe_policy(self) -> str:
        """The dtypes of the layers in a line."""

    @abstractmethod
    def describe_optimizer(self) -> str:
        """The optimizer and its numbers in a line."""

    @abstractmethod
    def describe_loss(self, model: Any, data: "DataSet") -> str:
        """What is minimised."""


@dataclass(frozen=True)
class SettingsProgram(Program):
    """A program that its settings say in full: a YAML and the words of a command line.

    ConfigError for settings that are the record of a program of objects.
    """

    def __post_init__(self) -> None:
        given = [section for section in GIVEN if getattr(self.settings, section).name == PYTHON]
        if given:
            raise ConfigError([
                Problem(f"{section}.name", "is of a run that a Python program started, with objects that no YAML "
                        "holds.", PYTHON, "Run that program again; mpt.fit(..., resume=RUN_DIR) goes on with it.")
                for section in given
            ])  # fmt: skip

    def check_present(self) -> None:
        from mpt_cli.data.paths import check_present

        check_present(self.settings.data)

    def prepare_backend(self) -> Platform:
        return prepare_backend(self.settings)

    def load_data(self) -> "DataSet":
        from mpt_cli.data.load import load_data

        assert self.settings.seed is not None
        return load_data(self.settings.data, self.settings.seed)

    def build_model(self, data: "DataSet") -> Any:
        from mpt_cli.training.assembly import build_under_policy

        return build_under_policy(self.settings, data)

    def build_optimizer(self, total_steps: int | None) -> Any:
        from mpt_cli.training.loss_and_optimizer import build_optimizer

        return build_optimizer(self.settings.optimizer, total_steps)

    def compile(self, model: Any, data: "DataSet", optimizer: Any) -> None:
        from mpt_cli.training.assembly import compile_model

        compile_model(self.settings, model, data, optimizer)

    def set_learning_rate(self, optimizer: Any, total_steps: int | None, factor: float) -> bool:
        from mpt_cli.training.loss_and_optimizer import set_learning_rate

        return set_learning_rate(optimizer, self.settings.optimizer, total_steps, factor)

    def warnings(self, model: Any, data: "DataSet") -> list[str]:
        from mpt_cli.data.prepare import warn_of_float_labels
        from mpt_cli.training.assembly import check_numerics
        from mpt_cli.training.loss_and_optimizer import warn_of_learning_rate

        return [
            *check_numerics(self.settings.optimizer.name, model, data), *warn_of_learning_rate(self.settings.optimizer),
            *warn_of_float_labels(data, self.settings.data),
        ]  # fmt: skip

    @property
    def model_name(self) -> str:
        return self.settings.model.name

    def describe_policy(self) -> str:
        from mpt_cli.precision import Policy

        policy, notes = self.settings.policy, []
        head = Policy(policy.name, policy.head).head_policy
        if head != policy.name:
            notes.append(f"head {head}")
        if policy.float8:
            notes.append("Dense layers in float8")
        notes += [f"{pattern} {name}" for pattern, name in policy.overrides.items()]
        return f"{policy.name} ({', '.join(notes)})" if notes else policy.name

    def describe_optimizer(self) -> str:
        schedule = self.settings.optimizer.schedule
        scheduled = schedule.name != "constant" or schedule.warmup_steps
        rate = f"learning rate {self.settings.optimizer.learning_rate:g}"
        notes = [rate, f"{schedule.name} schedule"] if scheduled else [rate]
        return f"{self.settings.optimizer.name}, {', '.join([*notes, *notes_of(self.settings.optimizer)])}"

    def describe_loss(self, model: Any, data: "DataSet") -> str:
        asked = self.settings.trainer.loss
        return f"{model.loss.name} (auto: {data.task})" if asked == "auto" else asked


def notes_of(optimizer: Any) -> list[str]:
    """Decay, clipping, accumulation and averaging of an optimizer, or of its settings, where it has them."""
    names = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "gradient_accumulation_steps")
    notes = [f"{name} {getattr(optimizer, name):g}" for name in names if getattr(optimizer, name) is not None]
    return [*notes, f"EMA {optimizer.ema_momentum:g}"] if optimizer.use_ema else notes
