"""What a stranger, an accident or a bad disk may hand to `mpt`: words, recipes and files of a run. Whatever it is, the
answer is a sentence and an exit code of the table, without traceback, control codes and secrets, in ten seconds, and
nothing outside of the directory in question is written.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import mpt
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from mpt_cli.cli import main
from mpt_cli.compare import report as compare_report
from mpt_cli.compare.comparison import CompareDirectory, make_comparison
from mpt_cli.jobs.local_processes import Ending
from mpt_cli.report import run_page
from mpt_cli.settings.schema import all_keys
from mpt_cli.sweep import report as sweep_report
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.job_list import make_plan
from mpt_cli.sweep.run import Options, plan_facts

CASES = int(os.environ.get("FUZZ_CASES", 6))
CODES = (0, 2, 3, 4, 5, 130, 143)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # and what turns a line around
SECONDS = 10
SECRET = "hunter2-0xFEEDC0FFEE-ZZ"
TAKEN = "${oc.env:FUZZ_DB_PASSWORD}"
TEXTS = (
    "",
    "\0",
    "\x1b[31mred",
    "\udcff",
    "\u202egnp",
    "~nosuch/x",
    "-",
    "null",
    "nan",
    "1e400",
    "9" * 5000,
    "2**99999",
    "[" * 300,
    "{a: " * 400,
    "'",
    "\\",
    "${",
    "${x}",
    TAKEN,
    "${oc.env:" + TAKEN + "}",
    "${model}",
    "${.}",
    ",",
    "range(1e9)",
    "range(0,3,0)",
    "glob(*)",
    "interval(0,1)",
    "/etc/passwd",
    "/dev/null",
    "..",
    "json:loads",
    "nope:x",
    ":x",
    "*a",
    "!!python/object:os.system",
    "<<",
    "x" * 5000,
    "range(3),3",
    "[choice(1,2)]",
    "{a:sort(1,2)}",
    "shuffle(1,2),[range(2)]",
    "glob(*),x",
    "$\\bad{$",
    "0x" + "f" * 5000,
    "2001-01-01",
)
LINES = (  # of YAML as nobody writes it by a program
    "seed: {value}",
    "seed: !!binary {value}",
    "vars: {{a: {value}}}",
    "vars: {{a: !!set {{x, y}}}}",
    "? {value}\n: 1",
    "vars: {{? [1, 2] : {value}}}",
    "expect: {{val_loss: {{{value}: 2}}}}",
    "vars: &a [{value}, *a]",
    "--- {value}\n---\nb",
    "defaults: [{value}]",
    "defaults: [{{{value}: x}}]",
    "<<: {value}",
    "model: {{<<: {{name: {value}}}}}",
    "trainer: {{epochs: !!int {value}}}",
    "vars: {{a: !!timestamp 2001-01-01}}",
    "%TAG ! x\n---\na: !{value}",
    "seed: |\n  {value}",
    "vars: {{1: {value}, null: x, true: y}}",
    "hydra: {{searchpath: [{value}]}}",
    "backend: {{name: {value}}}",
    "tags: [{value}]",
    "policy: {{overrides: {{{value}: float32}}}}",
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(TEXTS))
NAMES = st.one_of(st.text(max_size=5), st.sampled_from(["object", "kwargs", "name"]))
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
KEYS = st.sampled_from([*all_keys(), "defaults", "vars", "expect", "hydra", "hydra.searchpath", "conf", "nosuch"])
VERBS = st.sampled_from(
    [
        "check",
        "check --untrusted",
        "check --show --json",
        "train",
        "sweep --dry-run",
        "reproduce --dry-run",
        "compare",
        "diagnose",
        "plan",
        "evaluate",
        "report",
        "watch",
        "list",
        "copy",
    ]
)
SEED = int(os.environ.get("FUZZ_SEED", 0))


def drawn(test: Callable[..., None]):
    """Run a test with as many cases as there are to be; to shrink one that fails would take minutes."""
    chosen = settings(
        max_examples=CASES,
        deadline=None,
        phases=(Phase.generate,),
        derandomize=False,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    return seed(SEED)(chosen(test))


class Reached(BaseException):
    """What a case may go up to: a framework, or another process."""


@pytest.fixture(scope="module")
def shelf(run: Path):
    """A folder with the run, and a sweep and a comparison of two such runs."""
    facts = plan_facts(["mpt", "sweep", "conf=digits_mlp"], Options())
    sweep = SweepDirectory(run.parent / "sweep")
    words = ["conf=digits_mlp", "policy=float32,mixed_float16"]
    compared, setups = make_comparison(words, None)
    found = {"setups": [asdict(setup) for setup in setups], "workers": 1, "seeds": None, "tolerance": None}
    directories = (
        (sweep, make_plan(["conf=digits_mlp", "seed=0,1"]), {}),
        (CompareDirectory(run.parent / "compare"), compared, found),
    )
    for directory, plan, more in directories:
        directory.path.mkdir()
        directory.write_plan(replace(plan, facts={**facts, **more}))
        for job in plan.jobs:
            shutil.copytree(run, directory.path / job.name, ignore=shutil.ignore_patterns("*.keras"))
            directory.write_ending(job, Ending(0, 1.5))
    return run.parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """The directory of a whole run, without what is large."""
    run = tmp_path_factory.mktemp("shelf") / "run"
    words = [
        "conf=digits_mlp",
        "model.hidden_units=[8]",
        "trainer.max_steps=3",
        "trainer.jit_compile=false",
        "trainer.save_model=false",
        "run_dir=run",
    ]
    assert mpt("train", *words, cwd=run.parent).returncode == 0
    shutil.rmtree(run / "checkpoints")
    return run


@pytest.fixture(autouse=True)
def here(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A working directory with the run; a secret in the environment, and nothing that starts a framework or a job."""

    def reached(*_: object, **__: object):
        raise Reached

    folder = tmp_path / "here"
    folder.mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FUZZ_DB_PASSWORD", SECRET)
    for module, name in ((run_page, "run_pictures"), (compare_report, "run_pictures"), (sweep_report, "pictures")):
        monkeypatch.setattr(module, name, lambda histories: [])
    monkeypatch.setattr(subprocess, "Popen", reached)
    for module in ("engine.backend", "training.run_from_settings"):
        monkeypatch.setattr(f"mpt_cli.{module}.prepare_backend", reached)
    return folder


def fault(*words: str):
    """What does not hold of the answer of `mpt`, in this process; empty where all does."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    kept, started = (sys.stdout, sys.stderr, sys.stdin), time.process_time()
    sys.stdout, sys.stderr, sys.stdin = *streams, io.TextIOWrapper(io.BytesIO(b"seed: 1\n"))
    try:
        code: int | None = main([*words])
    except Reached:
        code = 0
    finally:
        sys.stdout, sys.stderr, sys.stdin = kept
    said = "".join(stream.buffer.getvalue().decode("utf-8", "backslashreplace") for stream in streams)
    found = {
        f"exit code {code}": code not in CODES,
        "a traceback": "Traceback" in said or "This is a bug" in said,
        "it ends without a word": code not in (0, 143) and not said.strip(),
        "a control code": CONTROL.search(said),
        "a secret": SECRET[:10] in said or SECRET[-10:] in said,
        "no answer in time": time.process_time() - started > SECONDS,
        "a file outside": _is_touched(Path.cwd().parent),
    }
    return "".join(f"{name}: {words}\n{said[-3000:]}\n" for name, is_wrong in found.items() if is_wrong)


def _is_touched(folder: Path):
    """Whether anything beside the working directory is there, or the one file has changed."""
    return (
        sorted(path.name for path in folder.iterdir()) != ["here", "mine.txt"]
        or (folder / "mine.txt").read_text() != "mine"
    )


@drawn
@given(verb=VERBS, words=st.lists(st.tuples(st.sampled_from(["", "+", "~"]), KEYS, st.sampled_from(TEXTS)), max_size=3))
def test_any_words_are_answered(verb, words, here):
    given_words = [f"{sign}{key}={text}" for sign, key, text in words]
    assert not (wrong := fault(*verb.split(), "conf=digits_mlp", *given_words)), wrong


@pytest.mark.slow
@drawn
@given(verb=VERBS, content=st.dictionaries(KEYS, TREES, max_size=3))
def test_any_values_under_keys_of_ours_are_answered(verb, content, here):
    tree: dict[str, Any] = {}
    for path, value in content.items():
        *above, last = path.split(".")
        section = tree
        for name in above:
            inner = section.setdefault(name, {})
            section = inner if isinstance(inner, dict) else section.update({name: {}}) or section[name]
        section[last] = value
    with suppress(yaml.YAMLError, UnicodeEncodeError):  # what YAML can't write
        (here / "x.yaml").write_text(yaml.safe_dump(tree, allow_unicode=True))
        assert not (wrong := fault(*verb.split(), "conf=./x.yaml")), f"{tree}\n{wrong}"


@pytest.mark.slow
@drawn
@given(verb=VERBS, lines=st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(TEXTS)), min_size=1, max_size=2))
def test_any_text_of_a_recipe_is_answered(verb, lines, here):
    text = "".join(line.format(value=value) + "\n" for line, value in lines)
    (here / "x.yaml").write_bytes(text.encode(errors="surrogateescape"))
    assert not (wrong := fault(*verb.split(), "conf=./x.yaml")), f"{text}\n{wrong}"


PLACES = re.compile(rb'-?\d+(\.\d+)?(e-?\d+)?|"[^"]*"|\[\]|\{\}')
SUFFIXES = (".json", ".jsonl", ".yaml")
STRANGE = st.sampled_from(
    [
        b"null",
        b"[]",
        b"{}",
        b'"NaN"',
        b"1e400",
        b"1" + b"0" * 400,
        b'"\\u001b[31m"',
        b'"\\ud800"',
        b'"2.5"',
        b"[1]",
        b"true",
        b'{"a": [null]}',
        b'"../x"',
    ]
)


READING = {
    "run": (
        "report run",
        "watch run",
        "check conf=run/config.yaml",
        "evaluate run",
        "reproduce run --dry-run",
        "train resume=run trainer.epochs=9",
        "diagnose run",
    ),
    "sweep": ("report sweep", "watch sweep", "sweep --resume sweep --dry-run", "report sweep --json"),
    "compare": ("report compare", "watch compare", "report compare --json"),
}
ENDINGS = st.sampled_from([b"", b"[" * 9999, b"\xff\0", b'{"a": "\\u202e"}', b"null\n"])


@pytest.mark.slow
@drawn
@given(data=st.data())
def test_any_damage_to_a_directory_is_named(shelf, here, data):
    """A number or a text that became something else, a file cut off, one that is something else, or a link."""
    kind = data.draw(st.sampled_from(sorted(READING)))
    shutil.rmtree(here / kind, ignore_errors=True)
    shutil.copytree(shelf / kind, here / kind)
    files = (path.relative_to(here / kind) for path in (here / kind).rglob("*.*") if path.suffix in SUFFIXES)
    file = here / kind / data.draw(st.sampled_from(sorted(files)))
    content = file.read_bytes()
    places = list(PLACES.finditer(content))
    how = data.draw(st.sampled_from(["other", "other", "cut", "link"]))
    if how == "link":
        file.unlink()
        file.symlink_to(here.parent / "mine.txt")
    elif how == "other" and places:
        place = data.draw(st.sampled_from(places))
        file.write_bytes(content[: place.start()] + data.draw(STRANGE) + content[place.end() :])
    else:
        file.write_bytes(content[: data.draw(st.integers(0, len(content)))] + data.draw(ENDINGS))
    verb = data.draw(st.sampled_from(READING[kind]))
    shown = "" if file.is_symlink() else json.dumps(file.read_bytes()[-500:].decode(errors="replace"))
    assert not (wrong := fault(*verb.split())), f"{file}: {shown}\n{wrong}"
