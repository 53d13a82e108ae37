"""The verbs and their arguments: the docstring of `configure_NAME` is the description in `mpt NAME --help`.

They are all in this file, so that help and completion import no verb. Imports no Hydra, Keras or NumPy.
"""

import argparse
from typing import Any

from mpt_cli.errors import printable
from mpt_cli.sweep import PRUNERS, SAMPLERS

VERBS = {  # with their module in `mpt_cli.verbs` and their meaning; one without a meaning is not listed
    "train": ("train", "train one model: mpt train conf=digits_cnn trainer.epochs=3"),
    "run": ("run", "run an unchanged Keras script in mixed precision: mpt run train.py"),
    "sweep": ("sweep", "try values, rank the results: mpt sweep conf=digits_mlp seed=0,1"),
    "diagnose": ("diagnose", "find the loss scale a model needs, or what overflowed in a run"),
    "compare": ("sweep", "does half precision pay? mpt compare conf=digits_cnn"),
    "plan": ("inspection", "memory and dtypes on a GPU you don't have here"),
    "watch": ("watch", "follow a run or a sweep from another terminal"),
    "report": ("report", "write an HTML page of a run, a sweep or a comparison"),
    "reproduce": ("reproduce", "run recipes or earlier runs again and check the results, as in CI"),
    "evaluate": ("train", "loss and metrics of the model of a finished run"),
    "check": ("inspection", "check a configuration; --show prints it, --build builds the model"),
    "list": ("inspection", "recipes, models, data, policies, optimizers, keys"),
    "copy": ("inspection", "copy a recipe to a file that you can edit"),
    "doctor": ("inspection", "versions, devices, what is missing; --completion for your shell"),
    "__killed": ("reproduce", ""),
}
LISTED_VERBS = {name: meaning for name, (_, meaning) in VERBS.items() if meaning}
MERGED_VERBS = {
    "show": "check --show",
    "verify-resume": "reproduce --resume-check",
    "completion": "doctor --completion",
}

OVERRIDES = "conf=... key=value"  # metavars, which tell the completion what a word may be
SCRIPT = "[key=value …] SCRIPT.py args …"
MODULE = "MODULE args …"
REPRODUCE_TARGETS = "NAME|FILE|RUN_DIR … key=value …"

PAGE = "report.html"
LIST_KINDS = ("recipes", "models", "data", "policies", "groups", "optimizers", "modes", "keys")  # of `mpt list`


class Parser(argparse.ArgumentParser):
    """Print help in two layers: `--help` fits a screen, `--help-all` adds the group `more` and the `notes`."""

    notes = ""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )
        self.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
        self._help_all = self.add_argument("--help-all", action=_HelpAll, nargs=0)
        self.more = self.add_argument_group("more options")

    def format_help(self, is_whole: bool = False) -> str:
        has_more = bool(self.notes or self.more._group_actions) and not is_whole
        self._help_all.help = "show more options and examples" if has_more else argparse.SUPPRESS
        if is_whole:
            return "\n".join(filter(None, [super().format_help(), self.notes and f"{self.notes}\n"]))
        self._action_groups.remove(self.more)
        try:
            return super().format_help()
        finally:
            self._action_groups.append(self.more)

    def print_help(self, file: Any = None) -> None:
        """Print the help; raise where it can't be written, which argparse would ignore."""
        print(self.format_help(), end="", file=file)

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(printable(message), file)


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        print(parser.format_help(is_whole=True), end="")
        parser.exit()


def set_short_usage(parser: Parser) -> None:
    """Write a usage line that names the positional words, and all options as `[options]`."""
    words = [str(action.metavar) for action in parser._get_positional_actions()]
    parser.usage = " ".join([parser.prog, *words, "[options]"])


def add_overrides(parser: Parser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar=OVERRIDES,
        help="a recipe (conf=NAME or conf=./FILE.yaml), then changes: a key (seed=1) or a group (policy=float32)",
    )
    add_config_dir(parser)


def add_config_dir(parser: Parser) -> None:
    """Add --config-dir for the help alone: `split_config_directories` takes it out before the parser sees it."""
    parser.more.add_argument(
        "--config-dir",
        metavar="DIR",
        help="a folder with your groups and recipes, searched after ./conf and ./recipes; also in MPT_CONFIG_DIR",
    )


def add_flag(group: argparse._ActionsContainer, name: str, meaning: str) -> None:
    group.add_argument(name, action="store_true", help=meaning)


def add_count(group: argparse._ActionsContainer, name: str, meaning: str) -> None:
    group.add_argument(name, type=int, metavar="N", help=meaning)


def add_json(group: argparse._ActionsContainer) -> None:
    add_flag(group, "--json", "print the result as one JSON object")


def add_fail_on_verdict(parser: Parser) -> None:
    add_flag(parser, "--fail-on-verdict", "exit 4 unless healthy or warm-up skips only")
    add_flag(
        parser.more,
        "--allow-unchecked",
        "with --fail-on-verdict: accept `not checked` too, the verdict of a run without a sample",
    )


def add_job_options(parser: Parser, at_a_time: str, objective: str, directory: str) -> None:
    """Add the options of verbs that run jobs."""
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help=f"jobs at a time; default: {at_a_time}")
    parser.add_argument("--resume", metavar=directory, help="run the missing and failed jobs of an earlier one")
    parser.add_argument("--objective", metavar="NAME", help=objective)
    add_flag(parser, "--json", "print results.json; progress to stderr")
    parser.more.add_argument("--timeout", type=float, metavar="SECONDS", help="end a job that runs longer than this")
    add_flag(parser.more, "--quiet", "print no progress and no table")


def configure_train(parser: Parser) -> None:
    """Train one model. Leaves a run directory: configuration, metrics, events, model."""
    add_overrides(parser)
    add_flag(parser, "--json", "print the summary as JSON; progress to stderr")
    add_flag(parser, "--quiet", "print no progress")
    add_fail_on_verdict(parser)
    parser.epilog = """examples:
  mpt train conf=digits_cnn
  mpt train conf=digits_cnn policy=mixed_bfloat16 trainer.epochs=3 seed=1
  mpt train conf=./mine.yaml run_dir=runs/first
  mpt train resume=runs/digits_cnn/RUN    continue where that run stopped"""
    parser.notes = """more examples:
  mpt train conf=digits_cnn loss_scale=fixed loss_scale.initial_scale=2**10
  mpt train conf=digits_mlp model.builder=my_models.py:build_net 'model.kwargs={depth: 3}'
  mpt train conf=./mine.yaml --json > summary.json
  mpt train conf=runs/digits_cnn/RUN/config.yaml     the same run again
  mpt train conf=digits_cnn run_dir=r resume=auto    start or continue: the same command every time"""


def configure_run(parser: Parser) -> None:
    """Run an unchanged Keras script in mixed precision (policy=mixed_float16 by
    default), with loss scaling around its optimizers and a record of each fit."""
    add_fail_on_verdict(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar=SCRIPT)
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar=MODULE, help="run a module, not a file")
    parser.epilog = """examples:
  mpt run train.py --epochs 3
  mpt run policy=mixed_bfloat16 train.py
  mpt run loss_scale.initial_scale=2**10 run_dir=runs/first train.py
  mpt run -m package.train --epochs 3
  mpt run --fail-on-verdict train.py        for CI"""
    parser.notes = """If the script fails, the exit code is the script's: 1 after an exception (with its
traceback), else what it gave to sys.exit. Otherwise it is that of the most severe verdict,
as in `mpt train`: 4 for a run that never trained, collapsed or broke a rule that stops runs
(a training loop in the script is not stopped). With --fail-on-verdict it is 4 for every
verdict but healthy and warm-up skips only, and if nothing was recorded."""
    # what comes after the script is the script's, options too
    parser.parse_intermixed_args = parser.parse_args  # type: ignore[method-assign]


def configure_sweep(parser: Parser) -> None:
    """Train with every combination of the values given, and rank the results."""
    from mpt_cli.jobs.launchers import LAUNCHERS  # launchers read keys, which the help of other verbs need not

    add_overrides(parser)
    add_job_options(
        parser,
        "what fits; 16 on a cluster",
        "rank by this metric of the last epoch or by best_metrics.NAME, with :min or :max",
        "SWEEP_DIR",
    )
    add_flag(parser, "--dry-run", "check the configurations and list the jobs")
    add_count(parser.more, "--trials", "search: Optuna chooses N points, each a job; with --resume: N in all")
    parser.more.add_argument(
        "--sampler",
        choices=SAMPLERS,
        help="how a search chooses, by Optuna's name; default: tpe, which starts with 10 random points",
    )
    parser.more.add_argument(
        "--pruner",
        choices=PRUNERS,
        help="in a search: end jobs whose objective is behind that of others at the same epoch",
    )
    add_count(parser.more, "--sampler-seed", "default: 0; with -j 1 the same seed repeats the search")
    parser.more.add_argument(
        "--launcher", choices=tuple(LAUNCHERS), help="where the jobs run; default: local; with --resume: as before"
    )
    add_flag(
        parser.more,
        "--detach",
        "on Slurm: submit all jobs as an array, of which -j run at a time, and return; --resume waits for them",
    )
    parser.epilog = """examples:
  mpt sweep conf=digits_mlp loss_scale.initial_scale=2**8,2**15,2**24 seed=0,1,2
  mpt sweep conf=digits_cnn loss_scale.growth_steps=50,500 sweep_dir=mine
  mpt sweep --resume mine            only what is missing or failed
  mpt report mine                    table and page again"""
    parser.notes = """values, in Hydra's grammar:
  loss_scale.initial_scale=2**8,2**15,2**24     a list
  loss_scale.initial_scale='2**range(8,25,4)'   powers: 2**8, 2**12 … 2**24
  'seed=range(5)'  'optimizer.learning_rate=choice(1e-3,1e-2)'  'conf=glob(digits_*)'  'policy=glob(mixed_*)'

more examples:
  mpt sweep --resume mine seed=3,4   adds these seeds to every combination; --resume alone runs failed jobs again
  mpt sweep conf=digits_mlp 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))' optimizer.name=adam,sgd \\
      'loss_scale.initial_scale=2**range(8,25)' --trials 30      a search
  mpt sweep conf=digits_cnn 'seed=range(20)' --launcher submitit launcher.partition=gpu      each run as a Slurm job

launchers, and their settings as launcher.KEY=VALUE:
  local      processes of this machine
  submitit   for Slurm: timeout_min, cpus_per_task, gpus_per_node, mem_gb, partition, account, qos, constraint, nodes,
             tasks_per_node, gpus_per_task, setup (a line of shell before the job), python (the command that starts
             Python there), sbatch.OPTION, srun.OPTION (any other option; true for one without a value)
  ray        num_cpus, num_gpus; RAY_ADDRESS names a running Ray, by default the one on this machine
The machines of a cluster must see the sweep directory. Jobs continue if mpt is killed; --resume waits for them.

exit code: 0 if every job is good; 4 if all failures were numerical; else the most severe one (in the order 1, 3, 2,
143; 143 stands for killed, lost or timed out). The table and the files are always complete."""


def configure_diagnose(parser: Parser) -> None:
    """Measure which loss scale a model needs, or find what overflowed in a run."""
    add_overrides(parser)
    add_count(parser, "--step", "of a run: the step to look at; default: the last overflow")
    parser.add_argument("--out", metavar="DIR", help="where the files go; default: runs/… or that of the run")
    add_json(parser)
    add_count(parser.more, "--after-steps", "measure after this many steps of training; default: 0")
    add_count(parser.more, "--batches", "batches to measure; default: 8")
    add_count(parser.more, "--trial-steps", "of a run: steps for which each remedy is tried; 0: try none; default: 20")
    parser.epilog = """examples:
  mpt diagnose conf=digits_cnn
  mpt diagnose conf=digits_mlp policy=mixed_float16
  mpt diagnose runs/overflow/RUN                  the layer that overflowed last"""
    parser.notes = """more examples:
  mpt diagnose conf=underflow loss_scale=none --after-steps 100
  mpt diagnose conf=digits_resnet backend=jax --json > diagnosis.json
  mpt diagnose runs/overflow/RUN --step 7         the layer that overflowed at that step

It writes runs/RECIPE/diagnose-TIME-ID/ with diagnosis.json."""


def configure_plan(parser: Parser) -> None:
    """Compile a run for a GPU that is not here: its memory and its dtypes."""
    add_overrides(parser)
    parser.add_argument("--device", metavar="GPU", help="a100, a6000, b200, h100, h200 or v100")
    parser.add_argument(
        "--devices", type=int, default=1, metavar="N", help="number of GPUs, each with its share of a batch; default: 1"
    )
    add_json(parser)
    parser.epilog = """examples:
  mpt plan conf=gpt2_small_synthetic --device h100 policy=float32,mixed_float16
  mpt plan conf=gpt2_small_synthetic --device h100 --devices 8
  mpt plan conf=resnet50_synthetic --device a100 trainer.batch_size=64,128,256
  mpt plan conf=./mine.yaml --device a100 --json > plan.json"""
    parser.notes = """It needs no GPU, but the extra gpu-plan (3 GB) with XLA's compiler for NVIDIA's GPUs. It
compiles the loop that `mpt train backend=jax` runs."""


def configure_compare(parser: Parser) -> None:
    """Train a recipe or script in several precisions; compare quality, speed, skips."""
    add_overrides(parser)
    add_job_options(
        parser,
        "1; with more, no speeds",
        "judge by this metric of the last epoch or by best_metrics.NAME, with :min or :max",
        "COMPARE_DIR",
    )
    add_count(parser, "--seeds", "repeat with N seeds; default: 1")
    parser.more.add_argument(
        "--tolerance",
        type=float,
        metavar="X",
        help="largest difference that counts as equal; default: 0.01 for an accuracy, 5 %% of a loss well above 0",
    )
    parser.epilog = """examples:
  mpt compare conf=digits_cnn          float32, mixed_float16 and mixed_bfloat16
  mpt compare conf=digits_cnn policy=float32,mixed_float16 --seeds 3
  mpt compare policy=float32,mixed_float16 -- train.py --epochs 3
  mpt compare --resume mine            run the missing and failed jobs only"""
    parser.notes = """more examples:
  mpt compare conf=digits_mlp policy=mixed_float16 loss_scale=dynamic,fixed,none
  mpt compare conf=digits_mlp policy=float32,mixed_float16 backend=tensorflow,jax compare_dir=mine
  mpt report mine                      print the table and write the page again

The baseline is float32 on the same backend or, without float32, the first policy. Jobs run one after another, so that
their speeds can be compared. Each seed is a round; every second round runs in reverse order. For a script, quality and
speed are those of its first fit or loop.

exit code: 0 if every run is good, else as in `mpt sweep`. A precision that does not pay, or gives other results, is a
finding and not a failure."""


def configure_watch(parser: Parser) -> None:
    """Follow a run or a sweep that another process trains, or show one that is over."""
    parser.add_argument(
        "directory", metavar="RUN|SWEEP|COMPARE", help="a directory written by mpt train, sweep or compare"
    )
    parser.epilog = """examples:
  mpt watch runs/digits_cnn/RUN           Ctrl-C ends the watching, not the run
  mpt watch sweeps/digits_mlp/SWEEP       its jobs: step, loss, scale, skips"""
    parser.notes = """It reads the directory and nothing else. It ends when the run ends, with the exit code
of the run or sweep. 143: the run was killed and left no summary, or the sweep ended before
all its jobs. 130: Ctrl-C here, as in `tail -f`. 3: a directory that mpt did not write, or
that was removed.

For a run it prints console.log. Programs read metrics.jsonl and events.jsonl (tail -f)."""


def configure_report(parser: Parser) -> None:
    """Write the HTML page of a run, a sweep or a comparison. It opens from disk and
    needs no network."""
    parser.add_argument("directory", metavar="RUN|SWEEP|COMPARE")
    parser.add_argument("--out", metavar="FILE", help=f"the file to write; default: {PAGE} in the directory")
    parser.add_argument(
        "--objective",
        metavar="NAME",
        help="rank by another metric of the last epoch or by best_metrics.NAME, with :min or :max",
    )
    add_json(parser)
    parser.epilog = """examples:
  mpt report runs/digits_cnn/RUN
  mpt report sweeps/digits_mlp/SWEEP --objective best_metrics.val_accuracy

A run that still trains, was killed or has damaged files gets a page that says
what is missing."""


def configure_reproduce(parser: Parser) -> None:
    """Run recipes or earlier runs again and check their results."""
    parser.add_argument(
        "given",
        nargs="*",
        metavar=REPRODUCE_TARGETS,
        help="recipes, files, folders, patterns, run directories; then changes to all of them",
    )
    add_flag(parser, "--all", "every recipe that can run on this machine")
    parser.add_argument("--junit", metavar="FILE", help="write the results as JUnit XML, for CI")
    add_flag(parser, "--resume-check", "check that a killed and resumed run ends the same")
    add_flag(parser, "--dry-run", "read the recipes and list what would run")
    add_json(parser)
    parser.more.add_argument(
        "-k",
        dest="keywords",
        default="",
        metavar="EXPRESSION",
        help="only recipes with these words in their name or `tags:`; also with and, or, not, ()",
    )
    parser.more.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end a run that takes longer (30 s to end by itself)"
    )
    parser.more.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="run what failed again with the same seed, up to N times; if it passes then, it is flaky",
    )
    parser.more.add_argument(
        "--rtol",
        type=float,
        default=0.0,
        help="relative tolerance of metrics against an earlier run; default: 0. Counters must be equal",
    )
    parser.more.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="runs at the same time; default: 1")
    parser.more.add_argument(
        "--output",
        metavar="DIR",
        help="where the runs go; default: runs/reproduce/TIME-ID (with --resume-check they are not kept)",
    )
    parser.more.add_argument(
        "--at", type=int, metavar="STEP", help="with --resume-check: the step at which to kill; default: a random one"
    )
    add_config_dir(parser)
    parser.epilog = """examples:
  mpt reproduce --all --junit results.xml
  mpt reproduce runs/digits_cnn/RUN       compare with its summary, bit for bit
  mpt reproduce digits_mlp --resume-check trainer.epochs=3"""
    parser.notes = """more examples:
  mpt reproduce recipes/ 'digits_*' -k "nightly and not cnn" -j 2
  mpt reproduce recipes/ --retries 1 --timeout 600
  mpt reproduce runs/digits_cnn/RUN --rtol 0.02 on another machine: metrics within 2 %
  mpt reproduce digits_mlp seed=7               with changes; write ./NAME for a run directory with a recipe's name

exit code: 0 all as expected; 2 a recipe can't be read (the others ran); 5 an expectation was missed; else that of the
run that failed"""


def configure_evaluate(parser: Parser) -> None:
    """Print loss and metrics of the model of a finished run, on the data of that run."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="a run directory, such as runs/digits_cnn/RUN")
    parser.add_argument("--split", choices=("validation", "train"), default="validation", help="default: validation")
    add_json(parser)
    parser.epilog = "example:\n  mpt evaluate runs/digits_cnn/RUN --json"


def configure_check(parser: Parser) -> None:
    """Check a configuration without training, or print it."""
    add_overrides(parser)
    exclusive = parser.add_mutually_exclusive_group()
    add_flag(exclusive, "--show", "print the whole configuration, defaults included")
    add_flag(exclusive, "--build", "build the model on its data and audit its dtypes")
    add_flag(parser, "--untrusted", "read no environment variables: ${oc.env:NAME} stays as it is")
    add_json(parser)
    parser.epilog = """examples:
  mpt check conf=./mine.yaml policy=mixed_float16
  mpt check conf=digits_cnn --build      the dtype of every layer
  mpt check conf=digits_cnn optimizer=sgd --show > mine.yaml     a complete file"""
    parser.notes = """--show imports and runs nothing, and names the functions that the recipe would import. --build
prepares the run as `mpt train` does, up to its first step, and reports what that would refuse."""


def configure_list(parser: Parser) -> None:
    """List recipes, or what you can choose in one."""
    parser.add_argument(
        "kind", nargs="?", choices=LIST_KINDS, default="recipes", help="default: recipes", metavar="KIND"
    )
    parser.add_argument("section", nargs="?", metavar="SECTION", help="with keys: only this section")
    add_flag(parser, "--schema", "with keys: the JSON Schema of a recipe, for editors")
    add_config_dir(parser)
    add_json(parser)
    parser.epilog = f"""kinds: {", ".join(LIST_KINDS)}

examples:
  mpt list                     the recipes
  mpt list models --json
  mpt list groups              the files of each group, yours with their path
  mpt list keys trainer        every key of a section: default, meaning, range
  mpt list keys --schema > mpt.schema.json"""


def configure_copy(parser: Parser) -> None:
    """Copy a recipe to a file that you can edit, and mpt.schema.json, which tells
    editors its keys. Overwrites nothing."""
    parser.add_argument("recipe", metavar="RECIPE", help="its name, as `mpt list` shows it")
    parser.add_argument(
        "destination", metavar="DEST", nargs="?", help="a file, a folder or - (print it); default: ./RECIPE.yaml"
    )
    parser.epilog = "example:\n  mpt copy digits_cnn mine.yaml\n  mpt train conf=./mine.yaml"


def configure_doctor(parser: Parser) -> None:
    """Examine this machine: versions, devices, what is missing and how to get it."""
    exclusive = parser.add_mutually_exclusive_group()
    add_json(exclusive)
    exclusive.add_argument(
        "--completion", choices=("bash", "zsh", "fish"), help="print the script for completion with Tab"
    )
    parser.epilog = """examples:
  mpt doctor --json > doctor.json
  mpt doctor --completion bash >> ~/.bashrc
  mpt doctor --completion zsh >> ~/.zshrc        after compinit
  mpt doctor --completion fish > ~/.config/fish/completions/mpt.fish"""


def configure_killed(parser: Parser) -> None:
    """Train until a step, then kill this very process as `kill -9` would; `--resume-check` calls it."""
    add_overrides(parser)
    parser.add_argument("--at", type=int, required=True, metavar="STEP")
    parser.add_argument("--quiet", action="store_true")
