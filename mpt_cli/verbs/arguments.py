"""The verbs, and what each takes: `configure_NAME` for every verb NAME, whose docstring is the description in
`mpt NAME --help`.

All of them stand here, so that help and completion import no verb. Imports no Hydra, Keras or NumPy.
"""

import argparse
from dataclasses import dataclass

from mpt_cli.sweep import PRUNERS, SAMPLERS


@dataclass(frozen=True)
class Verb:
    """`module` of `mpt_cli.verbs`; a verb without a `meaning` is not listed."""

    module: str
    meaning: str = ""


VERBS = {
    "train": Verb("train", "one run: mpt train conf=digits_cnn loss_scale.initial_scale=2**10"),
    "run": Verb("run", "an unchanged Keras script in mixed precision, with record and verdict: mpt run train.py"),
    "sweep": Verb("sweep", "every combination of the values given, ranked: mpt sweep conf=digits_mlp seed=0,1,2"),
    "diagnose": Verb(
        "diagnose",
        "gradient ranges and the loss scale they need: mpt diagnose conf=digits_cnn; or which layer overflowed",
    ),
    "plan": Verb(
        "inspection", "memory, work and bounds on a GPU that is not here: mpt plan conf=digits_cnn --device h100"
    ),
    "compare": Verb("sweep", "one recipe under several precisions, side by side: mpt compare conf=digits_cnn"),
    "watch": Verb("watch", "a run or a sweep that goes on elsewhere, seen from here: mpt watch runs/digits_cnn/RUN"),
    "report": Verb("report", "one page of a run, of several overlaid, of a sweep or of a comparison"),
    "reproduce": Verb(
        "reproduce", "recipes or runs again, held against what was expected: mpt reproduce --all --junit results.xml"
    ),
    "verify-resume": Verb(
        "reproduce", "proof that a killed run goes on as if nothing had happened: mpt verify-resume conf=digits_mlp"
    ),
    "evaluate": Verb("train", "metrics of a finished run's model"),
    "export": Verb("train", "a finished run's model as .keras, SavedModel or ONNX"),
    "check": Verb("inspection", "is the configuration sound? --build also builds the model and audits its dtypes"),
    "show": Verb("inspection", "the resolved configuration, and which functions it would import"),
    "list": Verb("inspection", "what there is: recipes, models, data, policies, optimizers, keys"),
    "copy": Verb("inspection", "a recipe as a file of your own to edit"),
    "doctor": Verb("inspection", "versions, devices, policies, what is missing"),
    "completion": Verb("completion", "the script that completes mpt's words in bash, zsh or fish"),
    "__killed": Verb("reproduce"),
}
LISTED_VERBS = {name: verb.meaning for name, verb in VERBS.items() if verb.meaning}

OVERRIDES = "conf=... key=value"  # metavars, which tell the completion what a word may be
SCRIPT = "[key=value …] SCRIPT.py args …"
MODULE = "MODULE args …"
TARGETS = "NAME|FILE|RUN_DIR … key=value …"

PAGE = "report.html"
KINDS = ("recipes", "models", "data", "policies", "groups", "optimizers", "modes", "sinks", "keys")  # of `mpt list`


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar=OVERRIDES,
        help="conf= takes a recipe's name (`mpt list`) or the path of your own YAML; each key=value changes one key, "
        "each group=choice one part (policy, loss_scale, model, data, optimizer, trainer, backend, logger, distribute, "
        "fault)",
    )
    add_config_dir(parser)


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    """For the help; `take_config_directories` takes the words before the parser sees them."""
    parser.add_argument("--config-dir", metavar="DIR", help="a folder with groups and recipes of your own, searched "
                        "besides ./conf and ./recipes; also in MPT_CONFIG_DIR")  # fmt: skip


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def add_fail_on_verdict(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--fail-on-verdict", action="store_true", help=f"exit with 4 also where the run came to its "
                        f"end and {what} neither healthy nor warm-up skips only, chronic overflow say")  # fmt: skip
    parser.add_argument("--allow-unchecked", action="store_true", help="with --fail-on-verdict: take `not checked`, of "
                        "a run too short to be looked at, for healthy")  # fmt: skip


def add_job_options(parser: argparse.ArgumentParser, at_a_time: str, objective: str, directory: str) -> None:
    """Those of verbs that run jobs."""
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help=f"jobs at a time; default: {at_a_time}")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end a job after this long")
    parser.add_argument("--objective", metavar="NAME[:min|:max]", help=f"{objective}; default: the first of "
                        "val_accuracy, val_loss, accuracy, loss that the jobs have")  # fmt: skip
    parser.add_argument("--resume", metavar=directory, help="run what is missing or failed in an earlier one")
    parser.add_argument("--json", action="store_true", help="print results.json; progress to stderr")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no table")


def add_best(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--best", action="store_true", help="weights of the best epoch (trainer.monitor), not the last")


def add_untrusted(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--untrusted", action="store_true", help="read no variable of the environment: each stands for "
                        "itself, as ${oc.env:NAME}")  # fmt: skip


_TRAIN_EXAMPLES = """examples:
  mpt train conf=digits_cnn
  mpt train conf=digits_cnn policy=mixed_bfloat16 trainer.epochs=3 seed=1
  mpt train conf=digits_cnn loss_scale=fixed loss_scale.initial_scale=2**10
  mpt train conf=digits_mlp model.builder=my_models.py:build_net 'model.kwargs={depth: 3}'
  mpt train conf=./mine.yaml run_dir=runs/first --json > summary.json
  mpt train conf=runs/digits_cnn/RUN/config.yaml     the same run again
  mpt train resume=runs/digits_cnn/RUN               go on where that run stopped
  mpt train conf=digits_cnn run_dir=r resume=auto    begin or go on: the same command every time"""


def configure_train(parser: argparse.ArgumentParser) -> None:
    """Train one model and leave a run directory with its configuration, metrics, events, summary and model."""
    add_overrides(parser)
    parser.epilog = _TRAIN_EXAMPLES
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object; progress to stderr")
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    add_fail_on_verdict(parser, "the verdict is")


_RUN_EXAMPLES = """examples:
  mpt run train.py --epochs 3
  mpt run policy=mixed_bfloat16 train.py
  mpt run loss_scale=fixed loss_scale.initial_scale=2**10 run_dir=runs/first train.py
  mpt run -m package.train --epochs 3
  mpt run --fail-on-verdict train.py        for CI: 4 also where a verdict is chronic overflow, dead layers and the like

The script's own exit code passes through: 1 with its traceback where it raised, what it gave to sys.exit. Where it
ended well, it is that of the gravest verdict, as of `mpt train`: 4 for a run that never trained, collapsed or broke a
rule that stops runs (a loop of the script's own goes on all the same); with --fail-on-verdict for every verdict but
healthy and warm-up skips only, and where nothing was recorded."""


def configure_run(parser: argparse.ArgumentParser) -> None:
    """Run an unchanged Keras script in mixed precision: policy=mixed_float16 unless another is given, loss scaling
    around its optimizers, a record and a verdict of each fit. The exit code is the verdict's where the script itself
    ended well.
    """
    add_fail_on_verdict(parser, "a verdict is")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar=SCRIPT)
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar=MODULE, help="instead of a script")
    parser.epilog = _RUN_EXAMPLES
    # what comes after the script is the script's, options too
    parser.parse_intermixed_args = parser.parse_args  # type: ignore[method-assign]


_SWEEP_EXAMPLES = """values, in Hydra's grammar:
  loss_scale.initial_scale=2**8,2**15,2**24     one after another
  loss_scale.initial_scale='2**range(8,25,4)'   powers: 2**8, 2**12 … 2**24
  'seed=range(5)'  'optimizer.learning_rate=choice(1e-3,1e-2)'  'conf=glob(digits_*)'  'policy=glob(mixed_*)'

examples:
  mpt sweep conf=digits_mlp loss_scale.initial_scale=2**8,2**15,2**24 seed=0,1,2
  mpt sweep conf=digits_mlp policy=float32,mixed_float16 --dry-run
  mpt sweep conf=digits_cnn loss_scale.growth_steps=50,500 -j 2 --timeout 600 sweep_dir=mine
  mpt sweep --resume mine            what is missing or failed, and nothing else
  mpt sweep --resume mine seed=3,4   and these seeds, of all that it varies besides; what is there is not run again
  mpt sweep conf=./mine.yaml seed=0,1    with the sweep: block of the recipe: grid, points or search, seeds, objective,
                                         timeout_seconds, jobs, launcher; overrides and options win
  mpt report mine                    table and page again
  mpt sweep conf=digits_mlp 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))' optimizer.name=adam,sgd \\
      'loss_scale.initial_scale=2**int(interval(8,24))' --trials 30      a search, each trial by what came before
  mpt sweep conf=digits_cnn 'seed=range(20)' --launcher submitit launcher.partition=gpu launcher.timeout_min=30 \\
      launcher.gpus_per_node=1 launcher.cpus_per_task=8      a Slurm job each; launcher.cluster=local to try it here

launchers, and their settings as launcher.KEY=VALUE:
  local      processes of this machine
  submitit   cluster (slurm or local), timeout_min, cpus_per_task, gpus_per_node, mem_gb, partition, account, qos,
             constraint, sbatch.OPTION (any other option of sbatch)
  ray        address (default: RAY_ADDRESS, else a Ray of its own here), num_cpus, num_gpus, memory_gb
A cluster's machines must see the sweep directory. --timeout counts from where a job begins, not from where it waits.

exit code: 0 when every job is good; 4 when those that failed did so numerically; else the gravest of theirs (1 before
3, 2 and 143, which stands for killed, lost or timed out). The table and the files are complete all the same."""


def configure_sweep(parser: argparse.ArgumentParser) -> None:
    """Many runs of one command line: every combination of the values given, each in a process of its own, ranked."""
    from mpt_cli.jobs.launchers import LAUNCHERS  # they read keys, which other verbs' help does not

    add_overrides(parser)
    parser.epilog = _SWEEP_EXAMPLES
    add_job_options(parser, "what cores, memory and GPUs allow, and 16 on a cluster", "what the jobs are ranked by",
                    "SWEEP_DIR")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="check all configurations, list the jobs, run none")
    parser.add_argument("--trials", type=int, metavar="N", help="search: N points, each with values chosen by Optuna, "
                        "a job each, or one for each of several seeds; with --resume, so many in all")  # fmt: skip
    parser.add_argument("--sampler", choices=tuple(SAMPLERS), help="how a search chooses, as Optuna calls it; "
                        "default: tpe, whose first 10 are random. gp needs torch, cmaes a package of that "
                        "name")  # fmt: skip
    parser.add_argument("--pruner", choices=PRUNERS, help="of a search: end jobs whose objective is "
                        "behind what others had at the end of the same epoch; default: none")  # fmt: skip
    parser.add_argument("--sampler-seed", type=int, metavar="N", help="default 0; with -j 1 the same search again")
    parser.add_argument(
        "--launcher",
        choices=tuple(LAUNCHERS),
        help="where the jobs run, each a process as ever; default: local, and with --resume as before",
    )


_DIAGNOSE_EXAMPLES = """examples:
  mpt diagnose conf=digits_cnn
  mpt diagnose conf=underflow loss_scale=none --at-steps 0,100,400
  mpt diagnose conf=digits_mlp policy=mixed_float16 --write mine.yaml    then: mpt train conf=./mine.yaml
  mpt diagnose conf=digits_resnet backend=jax --json > diagnosis.json
  mpt diagnose runs/overflow/RUN                  the layer that overflowed last in that run
  mpt diagnose runs/overflow/RUN --step 7         the layer that overflowed at that step

It writes runs/RECIPE/diagnose-TIME-ID/ with diagnosis.json, gradients.png and gradients.svg."""


def configure_diagnose(parser: argparse.ArgumentParser) -> None:
    """Which loss scale does this model need, and which layer made a run overflow? Measured, and verified in float16."""
    add_overrides(parser)
    parser.add_argument("--at-steps", metavar="N,N…", help="measure after these steps of training; default: 0")
    parser.add_argument("--batches", type=int, metavar="N", help="batches to measure at each step; default: 8")
    parser.add_argument("--step", type=int, metavar="N", help="with a run directory: the step to train again; "
                        "default: the last one that overflowed")  # fmt: skip
    parser.add_argument("--trial-steps", type=int, metavar="N", help="with a run directory: over how many steps each "
                        "remedy is tried; 0: none is; default: 20")  # fmt: skip
    parser.add_argument("--write", metavar="FILE", help="write a copy of the recipe with the recommendation in it")
    parser.add_argument("--out", metavar="DIR", help="where to put the files; default: runs/RECIPE/diagnose-TIME-ID, "
                        "or in the run directory")  # fmt: skip
    add_json(parser)
    parser.epilog = _DIAGNOSE_EXAMPLES


_PLAN_EXAMPLES = """examples:
  mpt plan conf=gpt2_small_synthetic --device h100
  mpt plan conf=gpt2_small_synthetic --device h100 policy=float32,mixed_float16,mixed_bfloat16
  mpt plan conf=gpt2_small_synthetic --device h100 --devices 8 trainer.batch_size=32
  mpt plan conf=resnet50_synthetic --device a100 trainer.batch_size=64,128,256
  mpt plan conf=./mine.yaml --device ./my_gpu.yaml --json > plan.json

It needs no GPU, but the extra gpu-plan (3 GB) with XLA's compiler for NVIDIA's. What is compiled is the loop that
`mpt train backend=jax` runs; times are bounds from the chip's peaks, and nothing is run."""


def configure_plan(parser: argparse.ArgumentParser) -> None:
    """What a run would be on a GPU that is not here: memory, work by dtype, a bound on its speed, traffic."""
    add_overrides(parser)
    parser.add_argument("--device", metavar="GPU", help="a100, a6000, b200, h100, h200, v100, or a file of your own")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="how many of them train it together, each "
                        "on its share of a batch (data_parallel); default: 1")  # fmt: skip
    add_json(parser)
    parser.epilog = _PLAN_EXAMPLES


_COMPARE_EXAMPLES = """examples:
  mpt compare conf=digits_cnn                                  float32, mixed_float16 and mixed_bfloat16
  mpt compare conf=digits_cnn policy=float32,mixed_float16 --seeds 3
  mpt compare conf=digits_mlp policy=mixed_float16 loss_scale=dynamic,fixed,none
  mpt compare conf=digits_mlp policy=float32,mixed_float16 backend=tensorflow,jax compare_dir=mine
  mpt compare --resume mine                                    what is missing or failed, and nothing else
  mpt report mine                                              table and page again

The baseline is float32, of the same backend; without float32, the first. Jobs run one after another, so that their
speeds can be compared; several seeds are rounds, every other one backwards.

exit code: as of `mpt sweep`: 0 when every run is good, else the gravest of theirs. A precision that does not pay, or
gives other results, is a finding and no failure."""


def configure_compare(parser: argparse.ArgumentParser) -> None:
    """One recipe under several precisions, same seed, data and order: quality, speed, memory and skips side by side."""
    add_overrides(parser)
    parser.epilog = _COMPARE_EXAMPLES
    add_job_options(parser, "1. With more, speeds are not compared", "the metric that is quality", "COMPARE_DIR")
    parser.add_argument("--seeds", type=int, metavar="N", help="repeat with N seeds, from the recipe's on; default: 1")
    parser.add_argument("--tolerance", type=float, metavar="X", help="how far the objective may be from the baseline's "
                        "and still be equal; default: 0.01 of an accuracy, 5 %% of a loss")  # fmt: skip


_WATCH_EXAMPLES = """examples:
  mpt watch runs/digits_cnn/RUN           the table and the live line of that run, from here on; Ctrl-C leaves it alone
  mpt watch sweeps/digits_mlp/SWEEP       its jobs, with step, loss, scale and skips
  mpt watch runs/digits_cnn/RUN --json | jq -c 'select(.record == "epoch")'

It ends when the run ends, with the exit code of the run (143 for one that was killed and left no summary; of a sweep
the gravest of its jobs), and with 130 on Ctrl-C, as `tail -f` does; the run goes on. A directory that is none of ours,
or that is removed: 3.

--json prints an object a line, "record" says of what: header, interval, epoch, event, went_back, silent, gone, end;
of a sweep job and end. interval, epoch and event are the lines of metrics.jsonl and events.jsonl."""


def configure_watch(parser: argparse.ArgumentParser) -> None:
    """Show a run or a sweep that goes on elsewhere, or is over. It reads the directory, nothing else."""
    parser.add_argument("directory", metavar="RUN|SWEEP|COMPARE", help="what mpt train, sweep or compare writes")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.epilog = _WATCH_EXAMPLES


_REPORT_EXAMPLES = """examples:
  mpt report runs/digits_cnn/RUN                    report.html in it
  mpt report runs/digits_mlp/* --out all.html       runs overlaid
  mpt report sweeps/digits_mlp/SWEEP --objective best_metrics.val_accuracy
  mpt report compares/digits_cnn/COMPARE

A run that is still going on, was killed or has damaged files gets a page that says what is missing."""


def configure_report(parser: argparse.ArgumentParser) -> None:
    """One page of a run, of several runs overlaid, of a sweep or of a comparison: opens from disk, needs no network."""
    parser.add_argument("directories", nargs="+", metavar="RUN|SWEEP|COMPARE", help="what mpt train, sweep or compare "
                        "wrote; of several, all their runs in one page")  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help=f"where the page goes; default: {PAGE} in the directory, of "
                        f"several {PAGE} here")  # fmt: skip
    parser.add_argument("--objective", metavar="NAME[:min|:max]", help="rank a sweep, or compare, by something else")
    add_json(parser)
    parser.epilog = _REPORT_EXAMPLES


_REPRODUCE_EXAMPLES = """examples:
  mpt reproduce digits_mlp overflow -j 2
  mpt reproduce --all --junit results.xml       every recipe, the project's too, that can run on this machine
  mpt reproduce recipes/ 'digits_*' -k "nightly and not cnn" -x
  mpt reproduce recipes/ --dry-run              what would run; an unreadable recipe is an error of its own
  mpt reproduce recipes/ --retries 1 --timeout 600
  mpt reproduce runs/digits_cnn/RUN             against its own summary: bit for bit
  mpt reproduce runs/digits_cnn/RUN --rtol 0.02 on another machine: metrics within 2 %
  mpt reproduce ./mine.yaml --update            run it with 3 seeds (or as many as `seeds:` says), and write into the
                                                expect: block what they missed, or the block itself
  mpt reproduce digits_mlp seed=7               with changes

exit code: 0 all came out as expected; 2 a recipe can't be read (the others ran); 5 an expectation was missed"""


def configure_reproduce(parser: argparse.ArgumentParser) -> None:
    """Run recipes or earlier runs again and hold them against what was expected; exit code 5 where that is missed."""
    parser.add_argument("given", nargs="*", metavar=TARGETS,
                        help="recipes, recipe files, folders of them, patterns, run directories (./NAME where a recipe "
                        "is called NAME); changes to all of them")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="every recipe that `mpt list` shows and that can run on "
                        "this machine")  # fmt: skip
    parser.add_argument("-k", dest="keywords", default="", metavar="EXPRESSION", help="those whose name or `tags:` "
                        "hold these words, with and, or, not")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="read them all and list what would run")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end a run after this long; it counts as "
                        "failed")  # fmt: skip
    parser.add_argument("--retries", type=int, default=0, metavar="N", help="run what failed again, up to N times; "
                        "what passes then is reported as flaky")  # fmt: skip
    parser.add_argument("-x", "--exitfirst", action="store_true", help="begin no run after one that failed")
    add_config_dir(parser)
    parser.add_argument("--rtol", type=float, default=0.0, help="how far a metric may be from that of an earlier run, "
                        "as a share of it; default: 0. Counters must always be equal")  # fmt: skip
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="runs at the same time; default: 1")
    parser.add_argument("--junit", metavar="FILE", help="write the verdicts as JUnit XML, for CI")
    parser.add_argument("--output", metavar="DIR", help="where the runs go; default: runs/reproduce/TIME-ID")
    parser.add_argument("--update", action="store_true", help="write missed expectations into the recipe files")
    add_json(parser)
    parser.epilog = _REPRODUCE_EXAMPLES


_VERIFY_RESUME_EXAMPLES = """examples:
  mpt verify-resume conf=digits_mlp trainer.epochs=3
  mpt verify-resume conf=digits_cnn backend=jax trainer.max_steps=60 --at 31"""


def configure_verify_resume(parser: argparse.ArgumentParser) -> None:
    """Prove that a killed run goes on as if nothing had happened: run it whole, run it killed and resumed, compare."""
    add_overrides(parser)
    parser.add_argument("--at", type=int, metavar="STEP", help="the step to kill it at; default: a random one")
    parser.add_argument("--output", metavar="DIR", help="keep both runs here; default: they are thrown away")
    add_json(parser)
    parser.epilog = _VERIFY_RESUME_EXAMPLES


def configure_evaluate(parser: argparse.ArgumentParser) -> None:
    """Loss and metrics of a finished run's model, on the data of that run."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="a run directory, as in runs/digits_cnn/RUN")
    parser.add_argument("--split", choices=("validation", "train"), default="validation", help="default: validation")
    add_best(parser)
    add_json(parser)
    parser.epilog = "example:\n  mpt evaluate runs/digits_cnn/RUN --json"


def configure_export(parser: argparse.ArgumentParser) -> None:
    """Write a finished run's model in another format. Nothing that exists is overwritten."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="a run directory, as in runs/digits_cnn/RUN")
    parser.add_argument(
        "--format", choices=("keras", "savedmodel", "onnx"), default="keras", help="default: keras; onnx needs tf2onnx"
    )
    parser.add_argument("--output", metavar="PATH", help="where to; default: inside the run directory")
    add_best(parser)
    add_json(parser)
    parser.epilog = "example:\n  mpt export runs/digits_cnn/RUN --format savedmodel --output served/digits"


_CHECK_EXAMPLES = """examples:
  mpt check conf=./mine.yaml policy=mixed_float16
  mpt check conf=digits_cnn --build      the dtype of every layer, without training
  mpt check conf=digits_cnn policy=mixed_float16 --build --ops      and of every operation of the forward pass"""


def configure_check(parser: argparse.ArgumentParser) -> None:
    """Say whether a configuration is sound; with --build also whether its model can be built on its data."""
    add_overrides(parser)
    parser.add_argument("--build", action="store_true", help="load the data, build the model and audit its dtypes")
    parser.add_argument("--ops", action="store_true", help="with --build, also the operations of the forward pass by "
                        "layer and dtype, and what is amiss")  # fmt: skip
    add_untrusted(parser)
    add_json(parser)
    parser.epilog = _CHECK_EXAMPLES


_SHOW_EXAMPLES = """examples:
  mpt show conf=digits_cnn
  mpt show conf=digits_cnn optimizer=sgd > mine.yaml     a complete file of your own"""


def configure_show(parser: argparse.ArgumentParser) -> None:
    """Print the resolved configuration: every key with the value it would have, but for secrets, of which the record
    of a run holds where they come from. Nothing is imported or run."""
    add_overrides(parser)
    add_untrusted(parser)
    add_json(parser)
    parser.epilog = _SHOW_EXAMPLES


_LIST_EXAMPLES = """examples:
  mpt list                     the recipes
  mpt list models --json
  mpt list groups              the files of each group, those of your project with their path
  mpt list keys trainer        every key with its default, meaning and range; without trainer those of all sections
  mpt list keys --schema > mpt.schema.json     for an editor: # yaml-language-server: $schema=mpt.schema.json"""


def configure_list(parser: argparse.ArgumentParser) -> None:
    """List what there is."""
    parser.add_argument("kind", nargs="?", choices=KINDS, default="recipes", help="default: recipes")
    parser.add_argument("section", nargs="?", metavar="SECTION", help="of keys: those of one section")
    parser.add_argument("--schema", action="store_true", help="of keys: the JSON Schema of a recipe, for editors")
    add_config_dir(parser)
    add_json(parser)
    parser.epilog = _LIST_EXAMPLES


def configure_copy(parser: argparse.ArgumentParser) -> None:
    """Copy a recipe to a file of your own, with mpt.schema.json beside it, by which editors know its keys. Nothing that
    exists is overwritten."""
    parser.add_argument("recipe", metavar="RECIPE", help="its name, as `mpt list` shows it")
    parser.add_argument("destination", metavar="DEST", nargs="?", help="a file or folder; default: ./RECIPE.yaml")
    parser.epilog = "example:\n  mpt copy digits_cnn mine.yaml\n  mpt train conf=./mine.yaml"


def configure_doctor(parser: argparse.ArgumentParser) -> None:
    """Examine this machine: versions, devices, policies, what is missing and how to get it."""
    add_json(parser)
    parser.epilog = "example:\n  mpt doctor --json > doctor.json"


def configure_completion(parser: argparse.ArgumentParser) -> None:
    """Print the script that completes mpt's words: verbs, options, recipes, groups, keys and their values."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.epilog = (
        "to have it in every shell:\n"
        "  bash:  mpt completion bash >> ~/.bashrc\n"
        "  zsh:   mpt completion zsh >> ~/.zshrc        (after compinit)\n"
        "  fish:  mpt completion fish > ~/.config/fish/completions/mpt.fish"
    )


def configure_killed(parser: argparse.ArgumentParser) -> None:
    """Train until a step, then kill this very process as `kill -9` would; `mpt verify-resume` calls it."""
    add_overrides(parser)
    parser.add_argument("--at", type=int, required=True, metavar="STEP")
    parser.add_argument("--quiet", action="store_true")
