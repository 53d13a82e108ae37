"""The workflows for CI: their commands do, in a repository that holds nothing but a recipe, what they say."""

import shlex
from pathlib import Path

import yaml

from mpt_cli.engine.backend import compile_cache_folder
from mpt_cli.verbs import verb_parser

FOLDER = Path(__file__).parents[2] / "examples" / "ci"


def read(name: str):
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def commands(name: str):
    if name == "reproduce.yml":
        lines = [step["run"] for step in read(name)["jobs"]["reproduce"]["steps"] if "run" in step]
    else:
        lines = [*read(name)["reproduce"]["before_script"], *read(name)["reproduce"]["script"]]
    return [shlex.split(line) for line in lines]


def test_both_install_one_package_and_run_what_mpt_has():
    """A dry run before it would end the job at one unreadable recipe, and the others would not run."""
    install, run = commands("reproduce.yml")
    assert install == ["pip", "install", "$MPT_PACKAGE"] and commands("reproduce.gitlab-ci.yml") == [install, run]
    parsed = verb_parser(run[1]).parse_intermixed_args(run[2:])
    assert (parsed.given, parsed.dry_run, parsed.keywords) == (["recipes"], False, "not quarantine")


def test_what_was_compiled_is_kept_between_jobs(monkeypatch):
    job, steps = read("reproduce.gitlab-ci.yml"), read("reproduce.yml")["jobs"]["reproduce"]["steps"]
    monkeypatch.setenv("XDG_CACHE_HOME", job["variables"]["XDG_CACHE_HOME"].replace("$CI_PROJECT_DIR", "/builds/mine"))
    assert compile_cache_folder().is_relative_to("/builds/mine/.cache/mpt")
    assert job["reproduce"]["cache"]["paths"] == [".cache/mpt"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    # a cache of pip's is keyed by requirements files, and without one setup-python fails
    assert [step.get("with", {}).get("cache") for step in steps] == [None] * len(steps)
    (cache,) = [step["with"] for step in steps if step.get("uses", "").startswith("actions/cache")]
    assert compile_cache_folder().is_relative_to(Path(cache["path"]).expanduser())
