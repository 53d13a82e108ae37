"""The form of the keys that name a function of the user's; importing its module is for the run."""

from collections.abc import Iterator

from mpt_cli.errors import Problem
from mpt_cli.settings.data import Loader
from mpt_cli.settings.models import Builder
from mpt_cli.settings.references import form_problem
from mpt_cli.settings.schema import Settings


def check_builder(settings: Settings) -> Iterator[Problem]:
    if isinstance(settings.model, Builder) and (problem := form_problem(settings.model.builder, "model.builder")):
        yield problem


def check_loader(settings: Settings) -> Iterator[Problem]:
    if isinstance(settings.data, Loader) and (problem := form_problem(settings.data.loader, "data.loader")):
        yield problem
