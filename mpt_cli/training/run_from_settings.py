"""What a run trains, from settings or from objects: model, dtypes, loss, metrics, optimizer and data.

Everything after it (engine, feeds, trainer, checkpoints, telemetry) is the same for every run. Keras is imported
inside functions, because a definition exists before the backend is chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from mpt_cli.engine.backend import Platform, prepare_backend
from mpt_cli.errors import Problem, config_error, raise_problems
from mpt_cli.settings.model_data_optimizer_keys import PYTHON, PYTHON_VARIANTS, GivenModel
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.search_path import shell_command

if TYPE_CHECKING:
    from mpt_cli.data.examples import DataSet


@dataclass(frozen=True)
class RunDefinition:
    """The definition of a run that its settings, from YAML and a command line, describe in full. ConfigError for
    recorded settings of objects, which are for a subclass.
    """

    settings: Settings
    repeatable: ClassVar[bool] = True  # whether the settings describe the run in full

    def __post_init__(self) -> None:
        if self.repeatable:
            check_repeatable(self.settings)

    @property
    def callbacks(self) -> Sequence[Any]:
        """Return Keras callbacks beside those of the settings."""
        return ()

    @property
    def model_name(self) -> str:
        """Return the model in a word."""
        return self.settings.model.name

    def with_settings(self, settings: Settings) -> Self:
        """Return the same under other settings, such as those with the seed that was drawn."""
        return replace(self, settings=settings)

    def check_present(self) -> None:
        """Raise MptError for missing data, model or functions, before seconds are spent on importing Keras."""
        from mpt_cli.data.paths import check_run_present

        check_run_present(self.settings)

    def prepare_backend(self) -> Platform:
        """Import Keras on the backend and device of the run."""
        return prepare_backend(self.settings)

    def load_data(self) -> "DataSet":
        """Load training and validation data, the same each time."""
        from mpt_cli.data.sources import load_data_for_builder, load_data_of_run

        load = load_data_for_builder if self.settings.model.name == "builder" else load_data_of_run
        return load(self.settings)

    def build_model(self, data: "DataSet") -> Any:
        """Return the model with its layers in the dtypes of the run; compiled where its author has done that."""
        return self.build_copy(self.settings, data)

    def build_copy(self, settings: Settings, data: "DataSet") -> Any:
        """Return the model once more, to be measured under the policy of `settings`; it is not compiled."""
        from mpt_cli.training.model import build_under_policy

        return build_under_policy(settings, data)

    def compile_copy(self, settings: Settings, model: Any, data: "DataSet") -> None:
        """Give such a copy the loss of the run, and no optimizer."""
        from mpt_cli.training.loss_and_optimizer import compile_model

        compile_model(settings, model, data, None)

    def describe_policy(self, model: Any) -> str:
        """Return the dtypes of the layers in a line."""
        from mpt_cli.precision import Policy, head_layers

        policy, notes = self.settings.policy, []
        head = Policy(policy.name, policy.head).head_policy
        if head != policy.name and head_layers(model):
            notes.append(f"head {head}")
        notes += [f"{pattern} {name}" for pattern, name in policy.overrides.items()]
        return f"{policy.name} ({', '.join(notes)})" if notes else policy.name


def check_repeatable(settings: Settings, run: str = "") -> None:
    """Raise ConfigError for settings that record objects of a Python program: which, and how to run it again.

    `run` is the name of the run, if that was given rather than its configuration.
    """
    model = settings.model
    if isinstance(model, GivenModel) and model.command:
        rule = "is the record of a script: the script makes the model and data, which no configuration holds."
        words = shell_command(*model.command)
        raise config_error(run or "model.name", rule, None if run else PYTHON, f"Run the script again: {words}")
    given = [section for section in PYTHON_VARIANTS if getattr(settings, section).name == PYTHON]
    raise_problems(
        Problem(
            run or f"{section}.name",
            "is a run that a Python program started, with objects that no YAML file can hold.",
            None if run else PYTHON,
            "Run that program again; mpt.fit(..., resume=RUN_DIR) continues it.",
        )
        for section in (given[:1] if run else given)
    )
