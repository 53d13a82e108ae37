"""A program that its settings say in full: a YAML and the words of a command line.

Keras is imported inside functions: a program exists before the backend is chosen.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpt_cli.engine.backend import Platform, prepare_backend
from mpt_cli.settings.schema import Settings
from mpt_cli.training.program import Program, check_repeatable

if TYPE_CHECKING:
    from mpt_cli.data.examples import DataSet


@dataclass(frozen=True)
class SettingsProgram(Program):
    """A program that its settings say in full. ConfigError for settings that are the record of a program of objects.
    """

    def __post_init__(self) -> None:
        check_repeatable(self.settings)

    def check_present(self) -> None:
        from mpt_cli.data.paths import check_run_present

        check_run_present(self.settings)

    def prepare_backend(self) -> Platform:
        return prepare_backend(self.settings)

    def load_data(self) -> "DataSet":
        from mpt_cli.data.load import load_data_for_builder, load_data_of_run

        load = load_data_for_builder if self.settings.model.name == "builder" else load_data_of_run
        return load(self.settings)

    def build_model(self, data: "DataSet") -> Any:
        return self.build_copy(self.settings, data)

    def build_copy(self, settings: Settings, data: "DataSet") -> Any:
        from mpt_cli.training.assembly import build_under_policy

        return build_under_policy(settings, data)

    def compile_copy(self, settings: Settings, model: Any, data: "DataSet") -> None:
        from mpt_cli.training.assembly import compile_model

        compile_model(settings, model, data, None)

    @property
    def model_name(self) -> str:
        return self.settings.model.name
