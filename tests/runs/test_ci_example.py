"""The workflow for CI: its commands are ones that mpt has."""

import shlex
from pathlib import Path

import yaml

from mpt_cli.settings.search_path import recipe_paths
from mpt_cli.verbs.parser import verb_parser

WORKFLOW = Path(__file__).parents[2] / "examples" / "ci" / "reproduce.yml"


def test_the_commands_of_the_workflow_are_understood() -> None:
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["reproduce"]["steps"]
    commands = [shlex.split(step["run"])[1:] for step in steps if step.get("run", "").startswith("mpt ")]
    reproduced, verified = (verb_parser(verb).parse_intermixed_args(words) for verb, *words in commands)
    assert set(reproduced.given) <= set(recipe_paths())
    assert (reproduced.jobs, reproduced.junit) == (2, "reproduce.xml")
    assert verified.overrides[0].removeprefix("conf=") in recipe_paths()
