"""What a stranger, an accident or a bad disk may hand to `mpt`: a `Case` is the words of one call and the files that
lie in its working directory. `CORPUS` are those that once broke it; `drawn` makes as many more as one likes.
"""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpt_cli.settings.schema import all_keys
from mpt_cli.settings.search_path import conf_directory, recipes_directory

RUN, SWEEP = "run", "sweep"  # directories that `shelf` made, in each working directory
SECRET_NAME, SECRET = "FUZZ_DB_PASSWORD", "hunter2-0xFEEDC0FFEE-ZZ"
TAKEN = f"${{oc.env:{SECRET_NAME}}}"


@dataclass(frozen=True)
class Case:
    """`files` are contents by path: bytes, or one of FIFO, FOLDER, LOOP, GONE, ELSEWHERE; `stdin` comes by a pipe."""

    words: tuple[str, ...]
    files: dict[str, bytes | str] = field(default_factory=dict)
    stdin: bytes = b"seed: 1\n"


HUGE = "1" + "0" * 400  # an integer beyond float's range
FIFO, FOLDER, LOOP, GONE = "a pipe", "a folder", "a link to itself", "gone"
ELSEWHERE = "a link to a file elsewhere"  # which stays as it is

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS = (
    "", " ", "\0", "a\0b", "\x1b[31mred", "\x9b2J", "\udcff", "\ud800", "über", "\u202egnp",
    "\u2066x\u2069", "e\u0301" * 9, "\u200b", "\ufeffa", "\u2028",
    "\U000e0041", "\ufffe",
    "~", "~nosuch/x", "-",
    "--", "=",
    "null", "true", "nan", "inf", "-inf", "1e400", "-0", "9" * 4000, "0x10", "1_000", "2**10", "2**99999", "2**2**99",
    "x" * 5000,
    "[" * 300, "]" * 9, "{a: " * 400, "{}", "[]", "[1,[2,[3]]]", "{a: {b: c}}", "'", '"', "'a", "\\", "$", "${", "${}",
    "${x}",
    "${oc.env:HOME}", "${oc.env:NO_SUCH}", TAKEN, "${oc.env:" + TAKEN + "}", "${oc.decode:${oc.env:HOME}}", "${.}",
    "${..x}",
    "${seed}", "${model}", "${oc.create:{a:1}}", "a,b", ",", "range(3)", "range(1e9)", "range(0,3,0)", "range(1e400)",
    "2**range(8,99999999999)", "choice(1,2)", "glob(*)", "interval(0,1)", "sort(3,1)", "shuffle(1,2)", "str(1)",
    "int(x)",
    "/etc/passwd", "/dev/null", "/dev/full", "/proc/self/mem", "..", "../..", ".", "/", "a/b", "a b", "a\nb", "a\tb",
    "a\rb",
    "json:loads", "os:system", "nope:x", ":", "x:", ":x", "json:loads:x", "json.decoder:JSONDecoder", "math",
    "file.py:f",
    "*", "?", "&a", "*a", "!x", "!!python/object:os.system", "@", "%", "`", "#", "- a", "? b", "|", ">", "<<", "<<: *a",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *TEXTS, None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"),
    [], {}, [[]],
    [None], {"": {}}, {"a": 1}, {"object": "json:loads"}, {"object": "nope:x", "kwargs": 3}, {"min": "x"}, [1, "x",
    None], [{}], "NaN",
)  # fmt: skip
_MORE_KEYS = ("conf", "resume", "defaults", "vars", "hydra", "hydra.run.dir", "hydra.searchpath", "sweep", "sweep_dir",
              "expect.loss",
              "model.kwargs.api_key", "data.kwargs", "phases.0.epochs", "phases.9.x", "nosuch", "model", "~model",
              "+x", "++seed",
              "~seed", "policy@x", "/policy", "", ".", "a.b.c.d", "\x1b[31m", "trainer..epochs", "description",
              "tags", "trainer.metrics.0", "trainer.metrics.x", "model.kwargs.a.b")  # fmt: skip
# `train` and its like go on to where Keras would be imported
CALLS = ("check", "check --untrusted", "check --json", "show", "show --json", "show --untrusted", "train",
         "sweep --dry-run",
         "sweep --dry-run --json", "reproduce --dry-run", "compare", "verify-resume", "diagnose", "plan", "copy",
         "evaluate",
         "export", "report", "watch", "run", "list", "list keys", "completion", "nosuch", "--help", "")  # fmt: skip
_OPTIONS = ("--json", "--quiet", "--untrusted", "--config-dir", "--config-dir=.", "-cd", "--dry-run", "-j", "0",
            "--trials", "-k", "not",
            "--tag", "--out", "--objective", "--help", "-h", "--resume", "--at", "--seeds", "--launcher", "--timeout",
            "-x", "--multirun",
            "--nosuch", "--=", "-", "--", "-\x1b[31m", "--\x1b[31mred", "-n", "--epochs", "-1", "--device",
            "h100")  # fmt: skip
_VALUED_OPTIONS = ("--junit", "--output", "--out", "--write", "--device", "--devices", "--tolerance",
                   "--timeout", "--rtol", "--retries", "-n", "-j", "--trials", "--sampler", "--sampler-seed",
                   "--pruner", "--seeds", "--objective", "--at-steps", "--batches", "--phase", "--step", "--at",
                   "--split", "-k", "--tag", "--config-dir", "--resume", "-m")  # fmt: skip
_NUMBERS = ("0", "-1", "1e9", "nan", "inf", "-inf", "9" * 400, "1_0", "٣", "0x1", "2**99999", "1,2,x", "1000000000")
_DEFAULTS = (
    "_self_", "_self_@x", "override model: mlp", "optimizer@a.b: sgd", "/model: mlp", "model/x: y", "optional x: y",
    "hydra/launcher: joblib", "../../x", "/etc/passwd", "pkg://os", "file:///etc", "https://host/x", "./x", "./x.yaml",
    "digits_mlp", "digits_mlp@trainer", "model: [mlp, cnn]", "model: null", "${x}: y", "model: ${x}", "~model", "?",
    "optimizer: ${oc.env:HOME}", "model: \u202emlp", "", "-", "a: {b: c}", "[model: mlp]", "null", "7",
)  # fmt: skip
_FOLDERS = ("/", "/proc", "/dev", "pkg://", "pkg://os", "pkg://os.path", "pkg://mpt_cli/../..", "pkg://..", "file://",
            "file:///proc/self", ".", "..", "~", "~nosuch", "a\0b", "x" * 300, TAKEN, "${..}", "${1}${1}", "conf",
            "https://host/x", "\x1b[31m", "recipes/digits_mlp.yaml")  # fmt: skip
_SWEPT = ("grid", "zip", "exclude", "conditional", "search", "search.space", "objectives", "stop", "launcher", "seeds",
          "jobs", "sweep_dir", "search.trials", "search.sampler", "grid.seed", "grid.loss_scale.initial_scale",
          "search.space.optimizer.learning_rate", "stop.patience", "conditional.0.when", "launcher.name",
          "nosuch")  # fmt: skip
_EXPECTED = ("min", "max", "value", "tolerance", "rtol", "atol", "nosuch")
_LOOKERS = (
    "watch run",
    "watch run --json",
    "watch run -n 0",
    "watch run --json -n 1",
    "report run",
    "report run --json",
    "report run run",
)
_READERS = ("show conf=run/config.yaml", "check conf=run/config.yaml", "train resume=run",
            "train resume=run trainer.epochs=9",
            "evaluate run", "export run", "diagnose run", "reproduce run --dry-run",
            "train conf=digits_mlp run_dir=run resume=auto",
            "train run_dir=run conf=digits_mlp")  # fmt: skip
_SWEEP_READERS = ("watch sweep", "watch sweep --json", "report sweep", "report sweep --json",
                  "report sweep --objective best_metrics.x",
                  "sweep --resume sweep --dry-run", "sweep --resume sweep seed=9 --dry-run")  # fmt: skip


def recipe(text: str | bytes, *words: str) -> Case:
    """One that lies in x.yaml, and is checked."""
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return Case((*(words or ("check",)), "conf=./x.yaml"), {"x.yaml": content})


def of_run(name: str, content: bytes | str, *words: str) -> Case:
    return Case(words, {f"{RUN}/{name}": content})


_STARTED_TWICE = {
    f"r{number}.yaml": f"defaults: [./r{number + 1}.yaml, ./r{number + 1}.yaml]\n".encode() for number in range(15)
}


def _summary(**strange: Any) -> bytes:
    return json.dumps({
        "schema_version": 1, "status": "finished", "exit_code": 0, "explanation": "", "verdict": "healthy",
        "steps_seen": 90, "applied_steps": 90, "skipped_steps": 0, "final_loss_scale": 1.0, "min_loss_scale": 1.0,
        "max_loss_scale": 1.0, "metrics": {}, "best_metrics": {}, "examples_per_second": 1.0, "peak_memory_bytes": 1,
        "seconds": 1.0, "recipe": "x", "run_dir": "x", **strange,
    }).encode()  # fmt: skip


CORPUS = (
    *(Case(("sweep", "conf=digits_mlp", "--dry-run", f"seed={value}"))
      for value in ("range(0,3,0)", "range(1e9)", "range(1e400)", "2**range(8,99999999999)", "9" * 10_000)),
    Case(("check", "conf=digits_mlp", "seed=" + "9" * 10_000)),
    Case(("check", "conf=digits_mlp", "model.kwargs=" + "[" * 300 + "]" * 300)),
    Case(("check", "conf=digits_mlp", "model.kwargs=" + "{a: " * 400 + "1" + "}" * 400)),
    recipe("model: {kwargs: {a: " + "[" * 300 + "]" * 300 + "}}"),
    recipe("model: {kwargs: " + "{a: " * 400 + "1" + "}" * 401),
    recipe("model:\n  builder: json:loads\n  kwargs: &k {a: *k}\n"),
    *(Case(("train", "conf=digits_mlp", f"{key}={value}"))
      for key in ("run_dir", "description", "backend.compile_cache", "model.builder") for value in ("a\0b",
          "a\udcffb")),
    *(recipe(f'{key}: "a\\0b"\n', "train") for key in ("run_dir", "description")),
    *(recipe(f'{section}: {{{key}: "a\\ud800b"}}\n', "train")
      for section, key in (("backend", "compile_cache"), ("model", "builder"), ("data", "path"))),
    recipe("defaults: [~optimizer]\n"), Case(("check", "conf=~nosuch/x.yaml")), Case(("check", "conf=nope")),
    *(of_run(name, b"[" * 100_000, "report", RUN)
      for name in ("summary.json", "environment.json", "header.json", "config.yaml", "metrics.jsonl", "events.jsonl")),
    of_run("summary.json", FOLDER, "train", f"resume={RUN}", "trainer.epochs=9"),
    recipe(LAUGHS), Case(("check", "conf=./r0.yaml"), {**_STARTED_TWICE, "r15.yaml": b"defaults: [digits_mlp]\n"}),
    recipe("".join(f"k{number}: 1\n" for number in range(100_000))),
    *(recipe(f"description: {TAKEN}\n", *verb) for verb in (("show",), ("show", "--json"), ("train",), ("check",))),
    *(recipe(f"defaults: [digits_mlp]\nmodel: {{builder: '{TAKEN}:x', kwargs: {{url: 'https://u:{TAKEN}@host'}}}}\n",
    verb)
      for verb in ("show", "check", "train")),
    Case(("sweep", "conf=" + "9" * 5000)), Case(("check", "conf=digits_mlp", "phases.N.freeze=[a]")),
    of_run("metrics.jsonl", b'{"step": 1, "epoch": 1, "loss": 1.0, "learning_rate": 0.1, "loss_scale": 1.0, '
           b'"scale_counter": 0, "skipped_steps": 0, "consecutive_skips": 0, "applied_steps": 1, '
           b'"examples_per_second": 1.0, "accuracy": "range(1e400)"}\n', "watch", RUN),
    *(recipe(f"{{trainer: {{{key}: {value}}}}}\n", "check") for key, value in (
        ("loss_weights", HUGE), ("loss_weights", f"{{a: {HUGE}}}"), ("class_weight", f"{{0: {HUGE}}}"))),
    recipe(f"{{expect: {{loss: {HUGE}}}, loss_scale: {{layer_scales: {{a: {HUGE}}}}}}}\n", "check"),
    recipe(b"\x1b[31mkey\x1b[0m: 1\n"), recipe(b'"\\e[31mkey": 1\n'),
    Case(("check", "conf=digits_mlp", "\x1b[31mx=1")), Case(("check", "conf=digits_mlp", "seed=\x1b[31m(")),
    Case(("check", "--\x1b[31mred")), Case(("\x1b[31mred",)), Case(("report", "\x1b[31mred")),
    of_run("summary.json", b'{"schema_version": 1, "verdict": "\\u001b[31m\\u009b2J", "status": "\\u001b]0;x\\u0007"}',
        "report", RUN),
    of_run("summary.json", b'{"schema_version": 1, "verdict": "\\u001b[31m"}', "watch", RUN),
    of_run("environment.json", b'{"schema_version": 1, "versions": {"\\u001b[31m": "\\u001b[31m"}}', "report", RUN),
    recipe("defaults: [./" + "x" * 5000 + "]\n"), recipe(b'{"loss_scale": {"beta1": "' + b"9" * 4000 + b'"}}'),
    recipe(f"optimizer: {{weight_decay: '{TAKEN}'}}\n", "show", "--untrusted"),
    Case(("watch", SWEEP), {f"{SWEEP}/logs/002-seed-1.json": b'{"schema_version": 1, "exit_code": 0, "seconds": []}'}),
    Case(("report", SWEEP),
        {f"{SWEEP}/logs/002-seed-1.json": b'{"schema_version": 1, "exit_code": "x", "seconds": 1}'}),
    of_run("events.jsonl",
        b'{"step": 1%s, "kind": "overflow", "scale_before": 2.0, "scale_after": 1.0}\n' % (b"0" * 400),
           "report", RUN),
    of_run("metrics.jsonl", b'{"step": 1, "epoch": 1, "loss": 1%s}\n' % (b"0" * 400), "report", RUN),
    of_run("events.jsonl", b"null\n", "diagnose", RUN),
    of_run("metrics.jsonl", b'{"step": 1, "epoch": 1, "loss": 1.0, "gradient_norm": "x"}\n', "watch", RUN),
    Case(("report", SWEEP), {f"{SWEEP}/002-seed-1/events.jsonl": b'{"step": 1, "scale_before": 1.0}\n'}),
    Case(("reproduce", "--dry-run", "./x.yaml", "--junit", "./x.xml"), {"x.yaml": f"seed: '{TAKEN}'\n".encode()}),
    of_run("environment.json", b'{"schema_version": 1, "versions": {"keras": "\\ud800"}}', "report", RUN),
    recipe("trainer.epochs: 5\n"), Case(("check", "conf=/etc/passwd")), Case(("show", "conf=/etc/passwd")),
    *(Case(("check", "conf=digits_mlp", "trainer.metrics=[mae]", word)) for word in ("~trainer.metrics.x",
        "~trainer.metrics.0", "trainer.metrics.x=mse", "model.kwargs.a.b=1", "~phases.0")),
    *(Case(tuple(words.split()), {"recipes/digits_mlp.yaml": kind, "conf/policy/odd.yaml": kind})
      for kind in (FIFO, LOOP, FOLDER) for words in ("list", "list groups", "list policies", "check conf=digits_mlp",
          "check conf=digits_cnn policy=odd", "copy digits_mlp")),
    *(of_run("header.json", json.dumps({"schema_version": 1, **dict.fromkeys(("recipe", "description", "run_dir",
        "policy", "loss_scale", "model", "data", "optimizer", "backend", "device", "execution"), "x"), "epochs": 5,
        "steps_per_epoch": 18, "total_steps": 90, "scaling": {"mode": "dynamic", **scaling}}).encode(), "watch", RUN)
      for scaling in ({"largest_factor": "2**9"}, {"mode": 3}, {"numbers": []})),
    Case(("report", SWEEP), {f"{SWEEP}/001-seed-0/summary.json": b'{"schema_version": 1, "exit_code": 0}'}),
    Case(("sweep", "--resume", SWEEP, "seed=9", "--dry-run"),
        {f"{SWEEP}/002-seed-1/environment.json": b'{"schema_version": 1, "attempts": [{"earlier_seconds": "math"}]}'}),
    *(of_run("summary.json", _summary(**strange), verb, RUN)
      for strange in ({"seconds": math.nan}, {"seconds": math.inf}, {"examples_per_second": "NaN"}, {"seconds": "NaN"})
      for verb in ("watch", "report")),
    *(of_run("report.html", kind, "report", RUN) for kind in (FIFO, LOOP, FOLDER)),
    of_run(".lock", FIFO, "train", f"resume={RUN}", "trainer.epochs=9"),
    recipe('description: "a\\ud800b"\n'), Case(("check", "conf=/etc/shadow")), Case(("report", "conf=\0")),
    Case(("report", "\ud800")),
    Case(("report", SWEEP), {f"{SWEEP}/sweep.json": b'{"schema_version": 1, "objective": ["x"], "jobs": [], '
        b'"varied": [], "recipe": "x", "duplicates": []}'}),
    *(recipe(f"sweep: {{{part}}}\n", "show") for part in ("seeds: x", "jobs: []", "search: {trials: x}",
        "stop: {timeout_seconds: x}")),
    recipe("vars: {" + "".join(f"a{n}: '{f'${{vars.a{n + 1}}}' * 2}', " for n in range(40)) + "a40: x}\n"),
    recipe("hydra: {searchpath: [" + "".join(f"'${{{n + 1}}}${{{n + 1}}}', " for n in range(40)) + "x]}\n"),
    *(recipe(f"description: '{opened * 60}x{'}' * 60}'\n") for opened in ("${", "${oc.env:")),
    recipe("seed: ${seed}\n"), recipe("description: '\u202egnp'\ntrainer: {epochs: \"\\u2028\"}\n", "check", "--json"),
    recipe("trainer:\n" + "".join(f"  epoch{n}: 1\n" for n in range(1500)), "sweep", "--dry-run", "seed=1,2"),
    *(of_run("environment.json", b'{"schema_version": 1, "machine": {"gpus": %s}}' % gpus, verb, RUN)
      for gpus in (b'["x"]', b"3", b"[{}]") for verb in ("report", "watch")),
    Case(("check", "conf=digits_mlp", "optimizer=odd"), {"conf/optimizer/odd.yaml": b"name: ad\n"}),
    *(of_run("metrics.jsonl", json.dumps({"step": 1, "epoch": 1, "loss": 1.0, "learning_rate": 0.1, "loss_scale": 1.0,
        "scale_counter": 0, "skipped_steps": 0, "consecutive_skips": 0, "applied_steps": 1,
        "examples_per_second": 1.0, **odd}).encode() + b"\n", "watch", RUN)
      for odd in ({"seconds": "null"}, {"seconds": "NaN"}, {"seconds": [1]}, {"attempt": "|"}, {"attempt": None})),
    of_run("events.jsonl", b'{"step": 1, "epoch": 1, "kind": "overflow", "scale_after": 1.0}\n', "train",
           f"resume={RUN}", "trainer.epochs=9"),
    *(Case(("sweep", "--resume", SWEEP, "seed=9", "--dry-run"), {f"{SWEEP}/sweep.json": json.dumps({
        "schema_version": 1, "jobs": [], "varied": [], "recipe": "digits_mlp", "duplicates": [],
        "command_line": ["mpt", "sweep", "conf=digits_mlp", "seed=0,1"], **odd}).encode()})
      for odd in ({"launcher": -1}, {"launcher": TAKEN}, {"launcher": {"name": []}}, {"varied": 5e-324},
          {"launcher": {"name": "ray", "settings": {"num_cpus": "x"}}})),
    *(Case((verb, SWEEP), {f"{SWEEP}/002-seed-1/summary.json": _summary(verdict="\u202egnp")})
      for verb in ("report", "watch")),
    *(of_run("summary.json", _summary(exit_code=code), verb, RUN)
      for code in (-1, 77, 10**6) for verb in ("watch", "report")),
    *(of_run(name, ELSEWHERE, "report", RUN) for name in ("report.html", "summary.json", "metrics.jsonl")),
    *(of_run(name, kind, *verb.split()) for kind in (FIFO, LOOP)
      for name in ("config.yaml", "summary.json", "metrics.jsonl", "header.json", ".lock") for verb in ("watch run",
          "report run")),
)  # fmt: skip


EVEN, QUICK = (9, 7, 7, 7, 60, 10, 5, 7, 3), (5, 4, 3, 2, 76, 10, 2, 2, 1)  # how often each of the ways below


def drawn(seed: int, count: int, shelf: Path, mix: tuple[int, ...]) -> Iterator[Case]:
    """The same cases for the same seed; `shelf` holds the directories of a run and of a sweep. QUICK has fewer of those
    in which Hydra composes, which takes a tenth of a second."""
    ways = (_words, _broken_recipe, _grown_recipe, _run_gone_on_with, _run_looked_at, _damaged_sweep, _strange_project,
            _strange_blocks, _piped_recipe)  # fmt: skip
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")
        yield draw.choices(ways, mix)[0](draw, shelf)


def _words(draw: random.Random, shelf: Path) -> Case:
    words = draw.choice(CALLS).split(" ")
    for _ in range(draw.randrange(4)):
        words.append(draw.choice(_OPTIONS) if draw.random() < 0.25 else _word(draw))
    if draw.random() < 0.3:
        words += [draw.choice(_VALUED_OPTIONS), draw.choice((*TEXTS, *_NUMBERS))]
    if draw.random() < 0.6:
        words.insert(draw.randrange(1, len(words) + 1), "conf=" + draw.choice(("digits_mlp", "digits_cnn", *TEXTS)))
    return Case(tuple(mutated_text(draw, word) if draw.random() < 0.1 else word for word in words))


def _word(draw: random.Random) -> str:
    key = draw.choice((*all_keys(), *_MORE_KEYS))
    value = draw.choice(TEXTS) if draw.random() < 0.8 else json.dumps(draw.choice(VALUES))
    return draw.choice(("", "", "", "+", "++", "~")) + f"{key}={value}"


def _call(draw: random.Random) -> tuple[str, ...]:
    verbs = (
        "check",
        "check",
        "show",
        "show --json",
        "show --untrusted",
        "train",
        "sweep --dry-run seed=1,2",
        "reproduce --dry-run",
    )
    return tuple(draw.choice(verbs).split())


def _broken_recipe(draw: random.Random, shelf: Path) -> Case:
    """A shipped file of which signs or lines are not what they were."""
    folder = draw.choice((conf_directory(), recipes_directory()))
    text = draw.choice(sorted(folder.rglob("*.yaml"))).read_bytes()
    content = (
        mutated_text(draw, text.decode()).encode("utf-8", "surrogatepass")
        if draw.random() < 0.7
        else mutated_bytes(draw, text)
    )
    words = _call(draw)
    return Case((*words, "./x.yaml" if words[0] == "reproduce" else "conf=./x.yaml"), {"x.yaml": content})


def _strange_project(draw: random.Random, shelf: Path) -> Case:
    """A file of a group or a recipe of the project's own, broken, or something that only has the name of one."""
    folder = draw.choice((conf_directory(), recipes_directory()))
    path = draw.choice([path for path in sorted(folder.rglob("*.yaml")) if path.name != "config.yaml"])
    name = draw.choice((path.stem, "odd"))
    group = path.parent.name if folder == conf_directory() else ""
    own = (f"conf=digits_mlp {group}={name}", f"conf=digits_cnn {group}=glob(*)") if group else (f"conf={name}",)
    words = (f"check {own[0]}", f"show {own[0]}", f"sweep {own[-1]} --dry-run", "list groups", "list", "list policies",
             "check conf=digits_cnn", f"copy {name}", "reproduce recipes --dry-run")  # fmt: skip
    content = draw.choice((FIFO, FOLDER, LOOP)) if draw.random() < 0.3 else mutated_bytes(draw, path.read_bytes())
    where = f"conf/{group}/{name}.yaml" if group else f"recipes/{name}.yaml"
    return Case(tuple(draw.choice(words).split()), {where: content})


def _grown_recipe(draw: random.Random, shelf: Path) -> Case:
    """Sound YAML with keys of ours, and values that are not."""
    tree: dict[str, Any] = {}
    for _ in range(draw.randrange(1, 4)):
        put(tree, draw.choice((*all_keys(), *_MORE_KEYS)), draw.choice(VALUES))
    return grown(tree, _call(draw))


def _strange_blocks(draw: random.Random, shelf: Path) -> Case:
    """Sound YAML with what only recipes have: other recipes and groups they start from, folders, variables, a sweep,
    expectations."""
    tree: dict[str, Any] = {"vars": {"a": draw.choice(VALUES), "b": "${vars.a}${vars.c}", "c": draw.choice(TEXTS)}}
    if draw.random() < 0.4:
        tree["defaults"] = [_entry(draw) for _ in range(draw.randrange(1, 4))]
    if draw.random() < 0.3:
        tree["hydra"] = {"searchpath": [draw.choice(_FOLDERS) for _ in range(draw.randrange(1, 3))]}
    for _ in range(draw.randrange(3)):
        put(tree, f"sweep.{draw.choice(_SWEPT)}", draw.choice((*VALUES, ["x", 1], {"seed": "range(3)"}, {"seed": [1]})))
    for _ in range(draw.randrange(2)):
        metric = draw.choice(("loss", "val_loss", *TEXTS))
        put(tree, "expect", {metric: {draw.choice(_EXPECTED): draw.choice(VALUES), "value": draw.choice(VALUES)}})
    words = (*_call(draw), *draw.choice(((), (), ("trainer.epochs=${vars.a}",), ("optimizer=${vars.c}",))))
    return grown(tree, words)


def _entry(draw: random.Random) -> Any:
    """Of a defaults list: a text, or a group and its choice."""
    text = draw.choice(_DEFAULTS)
    group, colon, choice = text.partition(": ")
    return {group: draw.choice((choice, draw.choice(VALUES)))} if colon else draw.choice((text, draw.choice(VALUES)))


def _piped_recipe(draw: random.Random, shelf: Path) -> Case:
    """`conf=-`, and what comes through the pipe."""
    made = draw.choice((_broken_recipe, _grown_recipe, _strange_blocks))(draw, shelf)
    content = next(iter(made.files.values()))
    assert isinstance(content, bytes)
    words = draw.choice(("check conf=-", "show conf=-", "show --json conf=-", "train conf=-", "sweep conf=- --dry-run",
                         "check conf=- conf=-", "compare conf=-", "copy -"))  # fmt: skip
    return Case(tuple(words.split()), {}, content)


def grown(tree: dict[str, Any], words: tuple[str, ...]) -> Case:
    content = json.dumps(tree).encode()  # which is YAML too
    return Case((*words, "./x.yaml" if words[0] == "reproduce" else "conf=./x.yaml"), {"x.yaml": content})


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            return
    tree[last] = value


def _run_looked_at(draw: random.Random, shelf: Path) -> Case:
    return _damaged_run(draw, shelf, _LOOKERS)


def _run_gone_on_with(draw: random.Random, shelf: Path) -> Case:
    return _damaged_run(draw, shelf, _READERS)


def _damaged_run(draw: random.Random, shelf: Path, calls: tuple[str, ...]) -> Case:
    return Case(
        tuple(draw.choice(calls).split()), dict(_damage(draw, shelf, RUN) for _ in range(draw.choice((1, 1, 2))))
    )


def _damaged_sweep(draw: random.Random, shelf: Path) -> Case:
    return Case(
        tuple(draw.choice(_SWEEP_READERS).split()),
        dict(_damage(draw, shelf, SWEEP) for _ in range(draw.choice((1, 2)))),
    )


def _damage(draw: random.Random, shelf: Path, folder: str) -> tuple[str, bytes | str]:
    path = draw.choice(sorted(path for path in (shelf / folder).rglob("*") if path.is_file()))
    name = path.relative_to(shelf).as_posix()
    if draw.random() < 0.15:
        return name, draw.choice((FIFO, FOLDER, LOOP, GONE, ELSEWHERE))
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl") and draw.random() < 0.7:
        return name, other_values(draw, content)
    return name, mutated_bytes(draw, content)


def other_values(draw: random.Random, content: bytes) -> bytes:
    """JSON that parses, one line or all of it, with values of other kinds in it."""
    lines = content.splitlines() if content.count(b"\n{") else [content]
    at = draw.randrange(len(lines) or 1)
    try:
        tree = json.loads(lines[at])
    except (ValueError, IndexError):
        return mutated_bytes(draw, content)
    for _ in range(draw.randrange(1, 3)):
        tree = other_value(draw, tree)
    written = json.dumps(tree)  # NaN and Infinity too, as no strict writer would
    if draw.random() < 0.1:  # a name twice, of which the last one counts
        written = written.replace("{", f"{{{json.dumps(draw.choice(TEXTS))}: 1, ", 1)
        written = written[:-1] + f', "schema_version": 1, "step": {json.dumps(draw.choice(VALUES))}}}'
    return b"\n".join(
        [
            *lines[:at],
            (written if draw.random() < 0.9 else written.replace("1", "1e999")).encode(),
            *lines[at + 1 :],
            b"",
        ]
    )


def other_value(draw: random.Random, tree: Any) -> Any:
    """The tree with one of its values replaced, left out, or put in a second time."""
    if isinstance(tree, dict) and tree and draw.random() < 0.95:
        name = draw.choice(list(tree))
        if draw.random() < 0.1:
            return {other: value for other, value in tree.items() if other != name}
        if draw.random() < 0.05:
            return {**tree, draw.choice(TEXTS): tree[name]}
        return {**tree, name: other_value(draw, tree[name])}
    if isinstance(tree, list) and tree and draw.random() < 0.9:
        at = draw.randrange(len(tree))
        return [*tree[:at], other_value(draw, tree[at]), *tree[at + draw.randrange(2) :]]
    return draw.choice(VALUES)


def mutated_text(draw: random.Random, text: str) -> str:
    """With a piece of it, at random, left out, doubled, moved, or replaced by one of TEXTS."""
    for _ in range(draw.randrange(1, 4)):
        first, last = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        last = min(last, first + draw.choice((0, 1, 1, 5, 40)))
        into = draw.choice(
            (
                "",
                text[first:last] * 2,
                draw.choice(TEXTS),
                draw.choice("\t\r\n:-?,[]{}#&*!|>'\"%@`~ ") * draw.choice((1, 2, 99)),
            )
        )
        text = text[:first] + into + text[last:]
    return text


def mutated_bytes(draw: random.Random, content: bytes) -> bytes:
    """As a bad disk, a crash or a full one leaves it."""
    kind = draw.randrange(6)
    if kind == 0:
        return content[: draw.randrange(len(content) + 1)]
    if kind == 1:
        return draw.choice(
            (
                b"",
                b"\n",
                b"null\n",
                b"[]",
                b"{}",
                b"\xff\xfe\xe9" * 50,
                bytes(500),
                b"[" * 100_000,
                b"{" * 5000,
                b"9" * 9000,
            )
        )
    if kind == 2:
        return content + draw.choice(
            (content, b"\n", bytes(100), b"{}", b"{\n", b"[1]\n", b'{"step": 1e999}\n', b'{"step": NaN}\n')
        )
    if kind == 3:
        return mutated_text(draw, content.decode("utf-8", "replace")).encode("utf-8", "replace")
    changed = bytearray(content)
    for _ in range(draw.randrange(1, 9) if changed else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)
