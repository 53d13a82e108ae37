"""Each verb that works without Keras, and how errors become exit codes."""

import json
import os
from pathlib import Path

import pytest

from mpt_cli import __version__, errors
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.search_path import recipe_paths
from mpt_cli.verbs import verb_parser
from mpt_cli.verbs.arguments import LIST_KINDS, LISTED_VERBS
from mpt_cli.verbs.inspection import LISTINGS


def test_help_names_every_verb_and_exit_code(mpt):
    assert mpt("--version").out == f"mpt {__version__}\n"
    done = mpt("--help")
    assert done.code == 0 and done.err == ""
    assert all(f"\n  {verb} " in done.out for verb in LISTED_VERBS) and fits_a_screen(done.out)
    assert "130 interrupted" in mpt("--help-all").out


def fits_a_screen(text: str):
    lines = text.splitlines()
    return len(lines) <= 24 and max(map(len, lines)) <= 80


def test_each_verb_has_help_with_an_example_that_fits_a_screen_and_the_rest_in_another(mpt, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for verb in LISTED_VERBS:
        done, whole = mpt(verb, "--help"), mpt(verb, "--help-all")
        assert done.code == whole.code == 0 and done.out.startswith(f"usage: mpt {verb}") and fits_a_screen(done.out)
        assert "mpt " + verb in done.out.partition("\n")[2]
        options = {option for action in verb_parser(verb)._actions for option in action.option_strings}
        assert {option for option in options if option not in whole.out} <= {"-h", "--help", "--help-all"}


def test_an_old_word_does_what_its_new_one_does_and_says_it(mpt):
    for old, new, word in (("show", "check --show", "conf=digits_mlp"), ("completion", "doctor --completion", "zsh")):
        done = mpt(old, word)
        assert (done.code, done.out) == (0, mpt(*new.split(), word).out)
        assert done.err == f"mpt {old} is now `mpt {new}`; the next version drops the old verb.\n"


def test_check_says_what_it_found(mpt):
    assert json.loads(mpt("check", "conf=digits_cnn", "--json").out) == {
        "schema_version": 1,
        "status": "ok",
        "recipe": "digits_cnn",
        "environment": [],
        "build": None,
        "backend": os.environ["KERAS_BACKEND"],
        "cannot_run_here": None,
    }


def test_show_names_the_objects_that_a_recipe_imports_at_every_depth(mpt):
    loss = "trainer.loss={a: mse, b: {object: 'own:loss', kwargs: {scale: {object: 'own:scale'}, text: 'x:y'}}}"
    words = ["conf=digits_mlp", loss, "trainer.callbacks=[history,own:Call]", "optimizer.schedule.object=own:falling"]
    assert json.loads(mpt("check", "--show", *words, "--json").out)["imports"] == [
        "own:loss",
        "own:scale",
        "own:Call",
        "own:falling",
    ]


def test_list_shows_each_with_a_description(mpt):
    assert tuple(LISTINGS) == LIST_KINDS
    for kind, name in (("policies", "auto_float16"), ("keys", "loss_scale.backoff_factor")):
        (line,) = [line for line in mpt("list", kind).out.splitlines() if line.split()[:1] == [name]]
        assert len(line.split()) > 1
        entries = json.loads(mpt("list", kind, "--json").out)[kind]
        assert all(entry["description"] or entry["name"] == "(all)" for entry in entries)


def test_a_copy_is_a_recipe_of_ones_own(mpt):
    assert mpt("copy", "digits_cnn").code == 0
    head, shipped = b"# yaml-language-server: $schema=mpt.schema.json\n", recipe_paths()["digits_cnn"].read_bytes()
    assert Path("digits_cnn.yaml").read_bytes() == head + shipped
    assert Path("mpt.schema.json").read_text() == mpt("list", "keys", "--schema").out
    assert mpt("check", "conf=digits_cnn.yaml").code == 0
    Path("sub").mkdir()
    assert mpt("copy", "digits_cnn", "sub").code == 0 and Path("sub/digits_cnn.yaml").is_file()
    assert Path("sub/mpt.schema.json").is_file()
    assert mpt("copy", "digits_cnn", "-").out.encode() == shipped


def test_a_copy_overwrites_nothing(mpt):
    Path("mpt.schema.json").write_text("mine")
    done = mpt("copy", "digits_cnn", "copy.yaml")
    assert done.code == 0 and len(done.out.splitlines()) == 1 and Path("mpt.schema.json").read_text() == "mine"
    assert load_settings(["conf=./copy.yaml"]).recipe == "digits_cnn"
    done = mpt("copy", "digits_cnn", "mpt.schema.json")
    assert done.code == 3
    assert done.err == "mpt copy: mpt.schema.json exists already. Nothing was changed; give another DEST.\n"
    assert Path("mpt.schema.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (errors.DataError("no disk."), 3, "mpt check: no disk.\n"),
        (errors.NumericalError("collapsed."), 4, "mpt check: collapsed.\n"),
        (KeyboardInterrupt(), 130, "\nmpt: interrupted\n"),
        (MemoryError(), 3, "mpt check: there is no memory left: it needs more than there is.\n"),
        (
            RuntimeError("can't start new thread"),
            3,
            "mpt check: the system starts no more threads or processes: can't "
            "start new thread. `ulimit -u` shows the limit.\n",
        ),
        (
            BlockingIOError(11, "Resource temporarily unavailable"),
            3,
            "mpt check: the system starts no more threads or "
            "processes: [Errno 11] Resource temporarily unavailable. `ulimit -u` shows the limit.\n",
        ),
    ],
)
def test_an_error_becomes_its_exit_code(error, code, words, mpt, monkeypatch):
    monkeypatch.setattr("mpt_cli.settings.load.load_with_notes", _raiser(error))
    done = mpt("check", "conf=digits_cnn")
    assert (done.code, done.err) == (code, words)


def test_anything_else_is_a_bug_of_ours(mpt, monkeypatch):
    monkeypatch.setattr("mpt_cli.settings.load.load_with_notes", _raiser(RuntimeError("surprise")))
    done = mpt("check", "conf=digits_cnn")
    assert done.code == 1
    assert "Traceback" in done.err and "surprise" in done.err and "This is a bug in mpt" in done.err


def test_the_users_exception_is_shown_with_their_traceback(mpt, monkeypatch):
    def fail(words: list[str]):
        try:
            exec(compile("def net():\n    return 1 / 0\nnet()", "/home/me/nets.py", "exec"))
        except ZeroDivisionError as error:
            raise errors.UserCodeError("model.builder: net raised ZeroDivisionError.") from error

    monkeypatch.setattr("mpt_cli.settings.load.load_with_notes", fail)
    done = mpt("check", "conf=digits_cnn")
    assert done.code == 2 and done.err.startswith("mpt check: model.builder: net raised ZeroDivisionError.\n\n")
    assert '"/home/me/nets.py", line 2, in net' in done.err and "This is a bug" not in done.err


def _raiser(error: BaseException):
    def fail(words: list[str]):
        raise error

    return fail
