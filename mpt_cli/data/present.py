"""Whether what a data source names is there, seen without loading it: before Keras is imported or a sweep begins."""

from mpt_cli.data.files import matching_files, readable_file, readable_files, readable_folder
from mpt_cli.errors import ConfigError
from mpt_cli.settings.data import Csv, DataSettings, Images, Loader, Npz, Text, TFRecord
from mpt_cli.settings.references import missing_problem


def check_present(settings: DataSettings) -> None:
    """DataError for a path without readable files, ConfigError for a loader that is nowhere: what loading would raise.

    The content of the files and what happens inside a loader are matters of the run.
    """
    if isinstance(settings, Loader):
        if problem := missing_problem(settings.loader, "data.loader"):
            raise ConfigError(problem)
    elif isinstance(settings, Npz | Csv):
        readable_file(settings.path)
    elif isinstance(settings, Images):
        readable_folder(settings.path)
    elif isinstance(settings, TFRecord):
        matching_files(settings.path)
    elif isinstance(settings, Text) and settings.path is not None:
        readable_files(settings.path)
