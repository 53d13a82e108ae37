"""What no recipe needs is refused at once, in a sentence, before anything is built of it."""

import os
import subprocess
import sys
from pathlib import Path

import omegaconf
import pytest

from mpt_cli import settings
from mpt_cli.cli import main
from mpt_cli.errors import ConfigError
from mpt_cli.jobs.launchers import RayLauncher
from mpt_cli.report.history import read_history
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings import schema, search_path
from mpt_cli.settings.limits import (
    DEEPEST,
    LONGEST_EXPRESSION,
    MOST_BITS,
    MOST_BYTES,
    MOST_DIGITS,
    MOST_FILE_BYTES,
    MOST_PROBLEMS,
    MOST_VALUES,
    Limit,
    check_variables,
    read_file,
    read_yaml_text,
    word_problem,
)
from mpt_cli.settings.load import evaluate, load_settings
from mpt_cli.sweep.block import read_block

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MANY = "must hold at most 10,000 values. MPT_MAX_YAML_VALUES=… in the environment allows more."
FILES = {
    "model: {kwargs: {a: " + "[" * 300 + "]" * 300 + "}}": "must not be nested deeper than 50 lists and mappings. "
                                                           "MPT_MAX_DEPTH=… in the environment allows more.",
    "model:\n  kwargs: &k {a: *k}\n": "must not hold itself: &k contains *k.",
    LAUGHS: MANY,
    f"a: &a {'x' * 19_999}\nb: [{','.join(['*a'] * 499)}]\n": MANY,
    f"description: {'x' * 20_001}\n": "must hold no text of more than 20,000 characters. MPT_MAX_TEXT_LENGTH=… in the "
                                      "environment allows more.",
    f"description: '{'${' * 51}x{'}' * 51}'\n": "must hold no `${…}` with more than 50 brackets within each other. "
                                                "MPT_MAX_DEPTH=… in the environment allows more.",
    "".join(f"k{number}: 1\n" for number in range(10_001)): MANY,
    "root:x:0:0:root:/root\nbin:x:1:1:bin:/bin\n": "must hold keys and values at its top level.",
    "- 1\n": "must hold keys and values at its top level.",
    "#" * (2**20 + 1): "must be at most 1 MiB of YAML. Received: '1,048,577 bytes'. MPT_MAX_YAML_BYTES=… in the "
                       "environment allows more.",
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "rule"), FILES.items(), ids=range(len(FILES)))
def test_a_file_that_is_no_recipe_is_refused_without_showing_it(text, rule, tmp_path, capsys):
    (tmp_path / "x.yaml").write_text(text)
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    assert capsys.readouterr().err == f"mpt check: conf: {tmp_path}/x.yaml {rule}\n"


def test_of_a_file_without_any_key_of_a_recipe_no_line_is_shown(tmp_path, capsys):
    (tmp_path / "shadow").write_text("root:$6$abc:19000:::\nsync:*:1:::\n")
    assert main(["check", f"conf={tmp_path}/shadow"]) == 2
    assert capsys.readouterr().err == (
        f"mpt check: conf: {tmp_path}/shadow must be a recipe, and has no key of one. `mpt list keys` shows what may "
        "stand in it; its name should end in .yaml.\n")  # fmt: skip
    (tmp_path / "shadow").write_text("root: 1\nsync:$6$abc: a: 3\n")
    assert main(["check", f"conf={tmp_path}/shadow"]) == 2
    assert capsys.readouterr().err == (
        f"mpt check: conf: {tmp_path}/shadow is not valid YAML: mapping values are not allowed here in line 2.\n")
    (tmp_path / "shadow").write_text("seed: 3\nsede: 4\n")
    assert main(["check", f"conf={tmp_path}/shadow"]) == 2
    assert "sede: there is no such key. Received: 4. Did you mean seed?" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_just_within_the_limits_is_read(tmp_path):
    (tmp_path / "x.yaml").write_text(f"a: {'[' * (DEEPEST.usual - 1)}{']' * (DEEPEST.usual - 1)}\n")
    read_yaml_text(tmp_path / "x.yaml")
    (tmp_path / "y.yaml").write_text(f"a: [{','.join('1' * (MOST_VALUES.usual - 3))}]\n")
    read_yaml_text(tmp_path / "y.yaml")
    (tmp_path / "y.yaml").write_text(f"a: [{','.join('1' * (MOST_VALUES.usual - 2))}]\n")
    with pytest.raises(ConfigError, match=r"must hold at most 10,000 values\."):
        read_yaml_text(tmp_path / "y.yaml")


WORDS = {
    "seed=" + "9" * 401: "seed: must hold no number of more than 400 digits.",
    "model.kwargs=" + "{a:" * 51 + "1" + "}" * 51: "model.kwargs: must not be nested deeper than 50 lists and",
    "description=" + "x" * 100_000: "description: must be at most 100,000 characters.",
    "run_dir=a\udcff": "run_dir: must be valid UTF-8.",
    "run_dir=a\0": "run_dir: must hold no NUL.",
    "x\x1b[31m=1": "x\\x1b[31m: there is no such key.",
}


@pytest.mark.slow
@pytest.mark.parametrize(("word", "rule"), WORDS.items(), ids=range(len(WORDS)))
def test_a_word_beyond_the_limits_is_refused_and_brings_no_control_code_to_the_terminal(word, rule, capsys):
    assert main(["check", "conf=digits_mlp", word]) == 2
    assert main(["sweep", "conf=digits_mlp", "--dry-run", "policy=float32,mixed_float16", word]) == 2
    err = capsys.readouterr().err
    assert f"mpt check: {rule}" in err and f"mpt sweep: {rule}" in err
    assert not {sign for sign in err if ord(sign) < 32} - {"\n"} and len(err) < 2000


@pytest.mark.parametrize(
    ("word", "rule"),
    [
        ("seed=range(0,3,0)", "range() must have a step other than 0."),
        ("seed=range(1e9)", "range() must have at most 100,000 values. MPT_MAX_RANGE_VALUES=… in the environment "
                             "allows more."),
        ("seed=range(0,1e400)", "range() must have finite limits."),
        ("seed=2**range(8,99999999999)", "range() must have at most 100,000 values."),
    ],
)
def test_a_range_that_never_ends_is_refused(word, rule, capsys):
    assert main(["sweep", "conf=digits_mlp", "--dry-run", word]) == 2
    assert f"seed: {rule}" in capsys.readouterr().err


def test_a_nul_in_a_file_is_refused_where_a_text_is_meant(tmp_path, capsys):
    (tmp_path / "x.yaml").write_text('run_dir: "a\\0b"\n')
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    assert "run_dir: must hold no NUL. Received: 'a\\x00b'." in capsys.readouterr().err


@pytest.mark.slow
def test_recipes_that_start_from_each_other_many_times_are_refused(tmp_path, monkeypatch, capsys):
    for number in range(16):
        bases = f"[./r{number + 1}.yaml, ./r{number + 1}.yaml]" if number < 15 else "[digits_mlp]"
        (tmp_path / f"r{number}.yaml").write_text(f"defaults: {bases}\n")
    assert main(["check", f"conf={tmp_path}/r0.yaml"]) == 2
    assert "defaults: a recipe must be listed once. Received: './r1.yaml'." in capsys.readouterr().err
    for number in range(60):
        (tmp_path / f"s{number}.yaml").write_text(f"defaults: [./s{number + 1}.yaml]\n")
    assert main(["check", f"conf={tmp_path}/s0.yaml"]) == 2
    said = capsys.readouterr().err
    assert "a recipe must start from at most 50 others, all of theirs counted. Received: " in said
    assert said.endswith("MPT_MAX_RECIPES=… in the environment allows more.\n")
    monkeypatch.setenv("MPT_MAX_RECIPES", "60")
    (tmp_path / "s60.yaml").write_text("defaults: [digits_mlp]\n")
    assert main(["check", f"conf={tmp_path}/s1.yaml"]) == 0


def test_a_pipe_that_nobody_writes_into_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(search_path, "PATIENCE_SECONDS", Limit("PIPE_SECONDS", 0, ""))
    os.mkfifo(tmp_path / "x.yaml")
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    said = capsys.readouterr().err
    assert "x.yaml cannot be read: nobody wrote into this pipe in 0 s (MPT_MAX_PIPE_SECONDS=… waits longer)." in said


def test_a_pipe_without_end_is_read_up_to_the_limit(tmp_path, capsys):
    os.mkfifo(tmp_path / "y.yaml")
    with subprocess.Popen(["sh", "-c", f"exec yes 'a: 1' > {tmp_path}/y.yaml"]) as endless:
        assert main(["check", f"conf={tmp_path}/y.yaml"]) == 2
        endless.wait()  # its reader is gone
    assert "must be at most 1 MiB of YAML. Received: '1,048,577 bytes'." in capsys.readouterr().err


def test_a_name_that_no_file_can_have_is_a_sentence(tmp_path, capsys):
    (tmp_path / "x.yaml").write_text(f"defaults: [./{'x' * 300}]\n")
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 3
    assert capsys.readouterr().err.endswith("xxxx: File name too long.\n")


def test_what_argparse_says_brings_no_control_code_to_the_terminal(capsys):
    assert main(["check", "--\x1b[31mred"]) == 2
    assert "unrecognized arguments: --\\x1b[31mred" in capsys.readouterr().err


def test_a_number_in_a_text_that_is_none_of_ours_is_a_sentence(tmp_path, capsys):
    (tmp_path / "x.yaml").write_text(f"loss_scale: {{beta1: '{'9' * 400}'}}\noptimizer: {{weight_decay: '\\${{x}}'}}\n")
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    said = capsys.readouterr().err
    assert "optimizer.weight_decay: must be a number. Received: '${x}'." in said


def test_a_home_that_does_not_exist_is_a_file_that_does_not_exist(tmp_path, capsys):
    assert main(["check", "conf=~nosuchuser/x.yaml"]) == 2
    assert "conf: there is no such file. Received: '~nosuchuser/x.yaml'." in capsys.readouterr().err
    (tmp_path / "x.yaml").write_text("defaults: [~optimizer]\n")
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    assert "conf: no recipe has this name. Received: '~optimizer'." in capsys.readouterr().err


@pytest.mark.parametrize("words", ["report", "watch", "evaluate", "export", "diagnose", "reproduce"])
def test_so_it_is_for_every_verb_that_takes_a_path(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*words.split(), "~nosuchuser/x"]) in (2, 3)
    assert f"mpt {words}:" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_a_key_with_points_in_a_file_is_told_how_it_is_written_there(tmp_path, capsys):
    (tmp_path / "x.yaml").write_text("trainer.epochs: 5\n")
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    sentence = "trainer.epochs: must be nested in a YAML file. Received: 5. Write `trainer: {epochs: …}`; with points"
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_many_problems_are_shown_in_part(tmp_path, monkeypatch, capsys):
    (tmp_path / "x.yaml").write_text("".join(f"k{number}: 1\n" for number in range(1000)))
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "mpt check: 1,000 problems:" and lines[-1] == (
        "  … and 950 more (MPT_MAX_PROBLEMS=… shows more)")  # fmt: skip
    assert len(lines) == MOST_PROBLEMS.usual + 2
    monkeypatch.setenv("MPT_MAX_PROBLEMS", "2000")
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1001


@pytest.mark.slow
@pytest.mark.parametrize("place", ["", "trainer:", "phases:\n-", "sweep:\n  grid:"])
def test_of_thousands_of_unknown_keys_those_that_are_listed_get_the_nearest_name(place, tmp_path, monkeypatch):
    compared = []
    monkeypatch.setattr(schema, "nearest", lambda name, _: compared.append(name))
    indent = "    " if place else ""
    (tmp_path / "x.yaml").write_text(f"{place}\n" + "".join(f"{indent}epoch{n}: 1\n" for n in range(1000)))
    with pytest.raises(ConfigError) as caught:
        (read_block if "sweep" in place else load_settings)([f"conf={tmp_path}/x.yaml"])
    problems = caught.value.problems
    assert len(problems) >= 1000 and len(set(compared)) <= 2 * MOST_PROBLEMS.usual
    assert [problem.remedy == "" for problem in problems].index(True) >= MOST_PROBLEMS.usual


def test_what_was_received_is_shown_in_part(capsys):
    assert main(["check", "conf=digits_mlp", f"seed={'x' * 1000}"]) == 2
    assert capsys.readouterr().err == (
        f"mpt check: seed: must be a whole number. Received: 'xx{'x' * 497}… (1,002 characters).\n")  # fmt: skip


INTERPOLATED = {
    "each the next one twice": "".join(f"  a{n}: '{f'${{vars.a{n + 1}}}' * 2}'\n" for n in range(40)) + "  a40: x\n",
    "each the next one": "".join(f"  a{n}: '${{vars.a{n + 1}}}'\n" for n in range(300)),
    "one a thousand times": f"  a0: '{'${vars.a1}' * 1000}'\n  a1: '${{seed}}'\n  a2: '${{vars.a0}}'\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("lines", INTERPOLATED.values(), ids=INTERPOLATED)
def test_values_made_of_others_too_many_times_are_refused(lines, tmp_path, capsys):
    (tmp_path / "x.yaml").write_text(f"vars:\n{lines}")
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    said = capsys.readouterr().err
    assert "cannot be resolved: there are more than 2,000 `${…}`. MPT_MAX_INTERPOLATIONS=… in the environment" in said
    assert omegaconf.base.parse is omegaconf.grammar_parser.parse


def test_folders_made_of_others_too_many_times_are_refused(tmp_path, capsys):
    doubled = ",".join(f"'${{{number + 1}}}${{{number + 1}}}'" for number in range(30))
    (tmp_path / "x.yaml").write_text(f"hydra: {{searchpath: [{doubled}, x]}}\n")
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    assert "hydra.searchpath: cannot be resolved: there are more than 2,000 `${…}`." in capsys.readouterr().err


def test_a_damaged_file_of_a_run_is_a_sentence(tmp_path, capsys):
    (tmp_path / "summary.json").write_text("[" * 100_000)
    (tmp_path / "config.yaml").write_text("recipe: x\n")
    assert main(["report", str(tmp_path)]) == 0
    assert "summary.json is damaged: maximum recursion depth exceeded" in capsys.readouterr().out


@pytest.mark.slow
def test_the_exit_code_tells_it_where_nothing_else_can(tmp_path):
    mpt = [sys.executable, "-m", "mpt_cli"]
    with open("/dev/full", "w") as full:
        assert subprocess.run([*mpt, "check", "conf=nope"], stderr=full, stdout=full).returncode == 2
    gone = tmp_path / "gone"
    gone.mkdir()
    where = {"PYTHONPATH": str(Path(settings.__file__).parents[2])}
    script = f'cd "{gone}" && rmdir "{gone}" && exec {sys.executable} -m mpt_cli train conf=digits_mlp'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=os.environ | where)
    assert (done.returncode, done.stderr.strip()) == (
        3, "mpt train: the working directory is gone. Change to one that exists.")  # fmt: skip


def test_the_environment_alone_raises_a_limit(tmp_path, monkeypatch, capsys):
    deep, many, large = (tmp_path / f"{name}.yaml" for name in ("deep", "many", "large"))
    deep.write_text(f"a: {'[' * 60}{']' * 60}\n")
    many.write_text(f"a: [{','.join('1' * 10_001)}]\n")
    large.write_text("#" * MOST_BYTES.usual + "\na: 1\n")
    for path in (deep, many, large):
        with pytest.raises(ConfigError, match="in the environment allows more"):
            read_yaml_text(path)
    for limit, value in ((DEEPEST, "61"), (MOST_VALUES, "10004"), (MOST_BYTES, str(2**21))):
        monkeypatch.setenv(limit.variable, value)
    for path in (deep, many, large):
        assert read_yaml_text(path)
    (tmp_path / "own.yaml").write_text("MPT_MAX_DEPTH: 90\nenvironment: {MPT_MAX_DEPTH: 90}\n")
    assert main(["check", f"conf={tmp_path}/own.yaml"]) == 2
    assert "MPT_MAX_DEPTH: there is no such key." in capsys.readouterr().err


@pytest.mark.parametrize(("name", "word"), [
    ("DEPTH", "x=" + "[" * 60 + "]" * 60), ("DIGITS", "x=" + "9" * 401), ("WORD_LENGTH", "x=" + "y" * 100_000),
])  # fmt: skip
def test_so_it_is_for_words(name, word, monkeypatch):
    assert word_problem(word).remedy == f"MPT_MAX_{name}=… in the environment allows more."
    monkeypatch.setenv(f"MPT_MAX_{name}", {"DEPTH": "60", "DIGITS": "401", "WORD_LENGTH": "100002"}[name])
    assert word_problem(word) is None


def test_so_it_is_for_expressions(monkeypatch):
    long, large = "+".join("1" * 501), "2**2000"
    for text, limit in ((long, LONGEST_EXPRESSION), (large, MOST_BITS)):
        with pytest.raises(ValueError, match=rf"{limit.variable}=… in the environment allows more$"):
            evaluate(text)
    monkeypatch.setenv(LONGEST_EXPRESSION.variable, "1001")
    monkeypatch.setenv(MOST_BITS.variable, "2001")
    assert evaluate(long) == 501 and evaluate(large) == 2**2000


def test_so_it_is_for_files_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv(MOST_FILE_BYTES.variable, "1000")
    (tmp_path / "summary.json").write_text(" " * 1001)
    with pytest.raises(OSError, match=r"it must be at most 1,000 bytes \(MPT_MAX_FILE_BYTES=… allows more\)"):
        read_file(tmp_path / "summary.json")
    monkeypatch.setenv(MOST_FILE_BYTES.variable, "1001")
    assert read_file(tmp_path / "summary.json") == " " * 1001


def test_a_line_that_is_too_long_is_left_out_and_said(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("recipe: x\n")
    run = RunDirectory(tmp_path)
    long = '{"step": 2, "loss": 2.0, "more": "' + "x" * 1000 + '"}\n'
    run.metrics_jsonl.write_text('{"step": 1, "loss": 1.0}\n' + long + '{"step": 3, "loss": 3.0}\n')
    assert list(read_history(tmp_path).steps["loss"].ys) == [1.0, 2.0, 3.0]
    monkeypatch.setenv("MPT_MAX_LINE_BYTES", "100")
    story = read_history(tmp_path)
    assert list(story.steps["loss"].ys) == [1.0, 3.0]
    assert ("metrics.jsonl: 1 damaged line was left out. A line may have 100 bytes. MPT_MAX_LINE_BYTES=… in the "
            "environment allows more.") in story.gaps  # fmt: skip


@pytest.mark.slow
def test_a_sweep_may_be_allowed_more(monkeypatch, capsys):
    monkeypatch.setenv("MPT_MAX_JOBS", "3")
    assert main(["sweep", "conf=digits_mlp", "--dry-run", "seed=range(4)"]) == 2
    said = "sweep: must be at most 3 jobs. Received: '4'. MPT_MAX_JOBS=… in the environment allows more."
    assert said in capsys.readouterr().err
    monkeypatch.setenv("MPT_MAX_JOBS", "4")
    monkeypatch.setenv("MPT_MAX_RANGE_VALUES", "3")
    assert main(["sweep", "conf=digits_mlp", "--dry-run", "seed=range(4)"]) == 2
    assert "seed: range() must have at most 3 values. MPT_MAX_RANGE_VALUES=" in capsys.readouterr().err
    monkeypatch.setenv("MPT_MAX_RANGE_VALUES", "4")
    assert main(["sweep", "conf=digits_mlp", "--dry-run", "seed=range(4)"]) == 0


@pytest.mark.parametrize(("variable", "value", "said"), [
    ("MPT_MAX_DEPTH", "201", "MPT_MAX_DEPTH: must be a whole number >= 1 and <= 200. Received: '201'. It is 50 where"),
    ("MPT_MAX_JOBS", "0", "MPT_MAX_JOBS: must be a whole number >= 1. Received: '0'. It is 10000 where it is not set."),
    ("MPT_MAX_JOBS", "1e5", "MPT_MAX_JOBS: must be a whole number >= 1. Received: '1e5'."),
    ("MPT_MAX_PROBLEMS", "", "MPT_MAX_PROBLEMS: must be a whole number >= 1. Received: ''."),
    ("MPT_MAX_JOB", "5", "MPT_MAX_JOB: is no limit that mpt has. Did you mean MPT_MAX_JOBS?"),
])  # fmt: skip
def test_a_variable_that_sets_no_limit_is_refused_by_every_verb(variable, value, said, monkeypatch, capsys):
    monkeypatch.setenv(variable, value)
    assert main(["list"]) == 2
    assert said in capsys.readouterr().err


def test_all_that_is_wrong_with_the_variables_is_said_at_once(monkeypatch):
    monkeypatch.setenv("MPT_MAX_PROBLEMS", "-1")
    monkeypatch.setenv("MPT_MAX_WORDS", "1")
    with pytest.raises(ConfigError) as caught:
        check_variables()
    assert [problem.key for problem in caught.value.problems] == ["MPT_MAX_PROBLEMS", "MPT_MAX_WORDS"]


@pytest.mark.slow
def test_what_is_as_deep_and_as_long_as_any_limit_allows_is_read_to_its_end(tmp_path, monkeypatch, capsys):
    """No recursion, and no rule of Python's, ends it before."""
    monkeypatch.setenv(DEEPEST.variable, str(DEEPEST.highest))
    monkeypatch.setenv(MOST_DIGITS.variable, str(MOST_DIGITS.highest))
    monkeypatch.setenv(MOST_BITS.variable, str(MOST_BITS.highest))
    for opened, closed in ("[]", ("{a: ", "}")):
        value = opened * (DEEPEST.highest - 3) + "1" + closed * (DEEPEST.highest - 3)
        (tmp_path / "x.yaml").write_text(f"model: {{builder: 'nets:build', kwargs: {{a: {value}}}}}\n")
        assert main(["show", f"conf={tmp_path}/x.yaml"]) == 0
        assert main(["show", "conf=digits_mlp", "model.builder=nets:build", f"model.kwargs.a={value}"]) == 0
    assert main(["check", "conf=digits_mlp", f"seed={'9' * MOST_DIGITS.highest}"]) == 2
    assert "seed: must be >= 0 and <= 4294967295." in capsys.readouterr().err
    assert evaluate(f"2**{MOST_BITS.highest - 1} - 1") == 2 ** (MOST_BITS.highest - 1) - 1


def test_what_is_started_elsewhere_reads_as_much(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert RayLauncher().inherited_variables() == {}
    monkeypatch.setenv("MPT_MAX_WORD_LENGTH", "200000")
    assert RayLauncher().inherited_variables() == {"MPT_MAX_WORD_LENGTH": "200000"}
