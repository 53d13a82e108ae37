"""What a stranger, an accident or a bad disk may hand to `mpt`: words, recipes and files of a run. Whatever it is, the
answer is a sentence and an exit code of the table, without traceback, control codes and secrets.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import mpt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpt_cli.cli import main
from mpt_cli.report import run_page
from mpt_cli.settings.schema import all_keys

CASES = int(os.environ.get("FUZZ_CASES", 12))
CODES = (0, 2, 3, 4, 5, 130, 143)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # and what turns a line around
SECRET = "hunter2-0xFEEDC0FFEE-ZZ"
TAKEN = "${oc.env:FUZZ_DB_PASSWORD}"
TEXTS = (
    "", "\0", "a\0b", "\x1b[31mred", "\udcff", "\u202egnp", "~nosuch/x", "-", "null", "nan", "1e400", "9" * 5000,
    "2**99999", "[" * 300, "{a: " * 400, "[1,[2,[3]]]", "'", "\\", "${", "${x}", TAKEN, "${oc.env:" + TAKEN + "}",
    "${model}", "${.}", ",", "range(1e9)", "range(0,3,0)", "glob(*)", "interval(0,1)", "/etc/passwd", "/dev/null", "..",
    "json:loads", "nope:x", ":x", "*a", "&a", "!!python/object:os.system", "<<", "x" * 5000,
)  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(TEXTS))
NAMES = st.one_of(st.text(max_size=5), st.sampled_from(["object", "kwargs", "name"]))
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
                     max_leaves=6)  # fmt: skip
KEYS = st.sampled_from(
    [*all_keys(), "defaults", "vars", "sweep", "expect", "hydra", "hydra.searchpath", "conf", "nosuch"]
)
VERBS = st.sampled_from(["check", "check --untrusted", "show --json", "train", "sweep --dry-run", "reproduce --dry-run",
                         "compare", "diagnose", "plan", "evaluate", "export", "report", "watch", "list",
                         "copy"])  # fmt: skip
FUZZ = settings(max_examples=CASES, deadline=None,
                suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip


class Reached(BaseException):
    """What a case may go up to: a framework, or another process."""


@pytest.fixture(autouse=True)
def hydra_composes_once() -> None:
    """Here all is read anew, the environment too."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a whole run, without what is large."""
    run = tmp_path_factory.mktemp("shelf") / "run"
    words = ["conf=digits_mlp", "model.hidden_units=[8]", "trainer.max_steps=3", "trainer.jit_compile=false",
             "trainer.save_model=false", "run_dir=run"]  # fmt: skip
    assert mpt("train", *words, cwd=run.parent).returncode == 0
    shutil.rmtree(run / "checkpoints")
    return run


@pytest.fixture(autouse=True)
def here(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the run; a secret in the environment, and nothing that starts a framework or a job."""

    def reached(*_: object, **__: object) -> None:
        raise Reached

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUZZ_DB_PASSWORD", SECRET)
    monkeypatch.setattr(run_page, "run_pictures", lambda stories: [])
    monkeypatch.setattr(subprocess, "Popen", reached)
    for module in ("engine.backend", "training.program"):
        monkeypatch.setattr(f"mpt_cli.{module}.prepare_backend", reached)
    return tmp_path


def fault(*words: str) -> str:
    """What does not hold of the answer of `mpt`, in this process; empty where all does."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    kept = sys.stdout, sys.stderr, sys.stdin
    sys.stdout, sys.stderr, sys.stdin = *streams, io.TextIOWrapper(io.BytesIO(b"seed: 1\n"))
    try:
        code: int | None = main([*words])
    except Reached:
        code = 0
    finally:
        sys.stdout, sys.stderr, sys.stdin = kept
    said = "".join(stream.buffer.getvalue().decode("utf-8", "backslashreplace") for stream in streams)
    found = {
        f"exit code {code}": code not in CODES, "a traceback": "Traceback" in said or "This is a bug" in said,
        "it ends without a word": code not in (0, 143) and not said.strip(), "a control code": CONTROL.search(said),
        "a secret": SECRET[:10] in said or SECRET[-10:] in said,
    }  # fmt: skip
    return "".join(f"{name}: {words}\n{said[-3000:]}\n" for name, is_wrong in found.items() if is_wrong)


@FUZZ
@given(verb=VERBS, words=st.lists(st.tuples(st.sampled_from(["", "+", "~"]), KEYS, st.sampled_from(TEXTS)), max_size=3))
def test_any_words_are_answered(verb: str, words: list[tuple[str, str, str]], here: Path) -> None:
    given_words = [f"{sign}{key}={text}" for sign, key, text in words]
    assert not (wrong := fault(*verb.split(), "conf=digits_mlp", *given_words)), wrong


@pytest.mark.slow
@FUZZ
@given(verb=VERBS, content=st.dictionaries(KEYS, TREES, max_size=3))
def test_any_values_under_keys_of_ours_are_answered(verb: str, content: dict[str, Any], here: Path) -> None:
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


NUMBERS = re.compile(rb"-?\d+(\.\d+)?(e-?\d+)?")
STRANGE = st.sampled_from(
    [b"null", b"[]", b"{}", b'"NaN"', b"1e400", b"1" + b"0" * 400, b'"\\u001b[31m"', b'"\\ud800"']
)


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_any_damage_to_a_run_is_named(run: Path, here: Path, data: st.DataObject) -> None:
    """A number that became something else, a file cut off, one that is something else."""
    shutil.copytree(run, here / "run", dirs_exist_ok=True)
    file = data.draw(
        st.sampled_from(sorted(path.name for path in run.iterdir() if path.suffix in (".json", ".jsonl", ".yaml")))
    )
    content = (run / file).read_bytes()
    numbers = list(NUMBERS.finditer(content))
    if numbers and data.draw(st.booleans()):
        place = data.draw(st.sampled_from(numbers))
        content = content[: place.start()] + data.draw(STRANGE) + content[place.end() :]
    else:
        content = content[: data.draw(st.integers(0, len(content)))] + data.draw(
            st.sampled_from([b"", b"[" * 9999, b"\xff\0"])
        )
    (here / "run" / file).write_bytes(content)
    verb = data.draw(st.sampled_from(["report run", "watch run --json", "check conf=run/config.yaml", "evaluate run",
                                      "train resume=run trainer.epochs=9", "reproduce run --dry-run"]))  # fmt: skip
    assert not (wrong := fault(*verb.split())), (
        f"{file}: {json.dumps(content[-500:].decode(errors='replace'))}\n{wrong}"
    )
