"""Many runs of one command line: every combination of the values given, each in a process of its own, ranked."""

import argparse
import sys
from typing import TYPE_CHECKING

from mpt_cli.errors import OK, ConfigError, Problem
from mpt_cli.sweep.launchers.settings import LOCAL, NAMES, split_launcher_words
from mpt_cli.sweep.search.settings import SAMPLERS, Search
from mpt_cli.verbs.common import add_words, print_json

if TYPE_CHECKING:
    from mpt_cli.sweep.launchers.launcher import Launcher
    from mpt_cli.sweep.ranking import SweepResults
    from mpt_cli.sweep.run import Options
    from mpt_cli.sweep.screen import Screen

_EXAMPLES = """values, in Hydra's grammar:
  loss_scale.initial_scale=2**8,2**15,2**24     one after another
  loss_scale.initial_scale='2**range(8,25,4)'   powers: 2**8, 2**12 … 2**24
  'seed=range(5)'  'optimizer.learning_rate=choice(1e-3,1e-2)'  'conf=glob(digits_*)'  'policy=glob(mixed_*)'

examples:
  mpt sweep conf=digits_mlp loss_scale.initial_scale=2**8,2**15,2**24 seed=0,1,2
  mpt sweep conf=digits_mlp policy=float32,mixed_float16 --dry-run
  mpt sweep conf=digits_cnn loss_scale.growth_steps=50,500 -j 2 --timeout 600 sweep_dir=mine
  mpt sweep --resume mine            what is missing or failed, and nothing else
  mpt report mine                    table and page again
  mpt sweep conf=digits_mlp 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))' optimizer.name=adam,sgd \\
      'loss_scale.initial_scale=2**int(interval(8,24))' --trials 30      a search, each trial by what came before
  mpt sweep conf=digits_cnn 'seed=range(20)' --launcher submitit launcher.partition=gpu launcher.timeout_min=30 \\
      launcher.gpus_per_node=1 launcher.cpus_per_task=8      a Slurm job each; launcher.cluster=local to try it here

launchers, and their settings as launcher.KEY=VALUE:
  local      processes of this machine
  joblib     workers of joblib's loky on this machine
  submitit   cluster (slurm or local), timeout_min, cpus_per_task, gpus_per_node, mem_gb, partition, account, qos,
             constraint, sbatch.OPTION (any other option of sbatch)
  ray        address (default: RAY_ADDRESS, else a Ray of its own here), num_cpus, num_gpus, memory_gb
A cluster's machines must see the sweep directory. --timeout counts from where a job begins, not from where it waits.

exit code: 0 when every job is good; 4 when those that failed did so numerically; else the gravest of theirs (1 before
3, 2 and 143, which stands for killed, lost or timed out). The table and the files are complete all the same."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_words(parser)
    parser.epilog = _EXAMPLES
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="jobs at a time; default: what cores, memory and "
                        "GPUs allow, and 16 on a cluster")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="check all configurations, list the jobs, run none")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end a job after this long")
    parser.add_argument("--objective", metavar="NAME[:min|:max]", help="what the jobs are ranked by; default: the "
                        "first of val_accuracy, val_loss, accuracy, loss that they have")  # fmt: skip
    parser.add_argument("--stop-behind-median", action="store_true", help="end a job whose objective is far behind "
                        "the median of at least 3 others at the same step")  # fmt: skip
    parser.add_argument("--trials", type=int, metavar="N", help="search: N jobs, each with values chosen by Optuna; "
                        "with --resume, so many in all")  # fmt: skip
    parser.add_argument("--sampler", choices=SAMPLERS, help="how a search chooses; default: tpe, whose first 10 are "
                        "random")  # fmt: skip
    parser.add_argument("--sampler-seed", type=int, metavar="N", help="default 0; with -j 1 the same search again")
    parser.add_argument("--launcher", choices=NAMES, help="where the jobs run, each a process as ever; default: local, "
                        "and with --resume as before")  # fmt: skip
    parser.add_argument("--resume", metavar="SWEEP_DIR", help="run what is missing or failed in an earlier sweep")
    parser.add_argument("--json", action="store_true", help="print results.json; progress to stderr")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no table")


def run(arguments: argparse.Namespace) -> int:
    words, launcher_words = split_launcher_words(arguments.words)
    _check(arguments, words)
    launcher = _launcher(arguments, launcher_words)
    from mpt_cli.sweep.files import results_dict
    from mpt_cli.sweep.run import Options
    from mpt_cli.sweep.screen import Screen
    from mpt_cli.sweep.table import objective_lines, print_results

    screen = Screen(None if arguments.quiet else sys.stderr if arguments.json else sys.stdout)
    options = Options(arguments.jobs, arguments.timeout, arguments.objective, arguments.stop_behind_median,
                      launcher=launcher)  # fmt: skip
    if arguments.dry_run:
        return _dry_run(arguments, words, options)
    found, code = _resume(arguments, options, screen) if arguments.resume else _start(arguments, words, options, screen)
    if arguments.json:
        for line in objective_lines(found):
            screen.say(line)
        print_json(results_dict(found))
    else:
        print_results(found, screen)
    return code


def _start(
    arguments: argparse.Namespace, words: list[str], options: "Options", screen: "Screen"
) -> "tuple[SweepResults, int]":
    from mpt_cli.sweep.run import start_sweep
    from mpt_cli.sweep.search.run import start_search

    search = _search(arguments)
    return start_search(words, search, options, screen) if search else start_sweep(words, options, screen)


def _resume(
    arguments: argparse.Namespace, options: "Options", screen: "Screen"
) -> "tuple[SweepResults, int]":  # fmt: skip
    from mpt_cli.sweep.directory import SweepDirectory
    from mpt_cli.sweep.run import resume_sweep
    from mpt_cli.sweep.search.run import resume_search

    if "search" in SweepDirectory.open(arguments.resume).read_plan()[1]:
        return resume_search(arguments.resume, arguments.trials, options, screen)
    if arguments.trials is not None:
        raise ConfigError(Problem("--trials", "is for a sweep that was begun with it.", arguments.trials))
    return resume_sweep(arguments.resume, options, screen)


def _search(arguments: argparse.Namespace) -> Search | None:
    if arguments.trials is None:
        return None
    return Search(arguments.trials, arguments.sampler or SAMPLERS[0], arguments.sampler_seed or 0)


def _launcher(arguments: argparse.Namespace, words: list[str]) -> "Launcher | None":
    from mpt_cli.sweep.directory import SweepDirectory
    from mpt_cli.sweep.launchers.launcher import Launcher

    if arguments.resume is not None and arguments.launcher is None and not words:
        return Launcher.from_facts(SweepDirectory.open(arguments.resume).read_plan()[1])
    return Launcher.choose(arguments.launcher or LOCAL, words)


def _dry_run(arguments: argparse.Namespace, given: list[str], options: "Options") -> int:
    from dataclasses import asdict

    from mpt_cli.sweep.plan import make_plan, plan_lines
    from mpt_cli.sweep.run import split_words
    from mpt_cli.sweep.search.run import space_lines

    search = _search(arguments)
    if search is not None:
        lines = space_lines(given, search, options.objective)
        print_json({"search": lines}) if arguments.json else print("\n".join(lines))
        return OK

    words, _ = split_words(given)
    plan = make_plan(words, is_here=options.is_here, objective=options.objective)
    if arguments.json:
        print_json({"jobs": [{**asdict(job), "command": job.command} for job in plan.jobs]})
    else:
        print("\n".join(plan_lines(plan)))
    return OK


def _check(arguments: argparse.Namespace, words: list[str]) -> None:
    problems = []
    if arguments.jobs is not None and arguments.jobs < 1:
        problems.append(Problem("-j", "must be >= 1.", arguments.jobs))
    if arguments.timeout is not None and not arguments.timeout > 0:
        problems.append(Problem("--timeout", "must be > 0 seconds.", arguments.timeout))
    if arguments.resume is not None and words:
        remedy = "The sweep's own words stand in its sweep.json."
        problems.append(Problem("--resume", "must be given without other words.", " ".join(words), remedy))
    if arguments.resume is not None and arguments.dry_run:
        problems.append(Problem("--dry-run", "must be left out with --resume."))
    if arguments.trials is not None and arguments.trials < 1:
        problems.append(Problem("--trials", "must be >= 1.", arguments.trials))
    for name, value in (("--sampler", arguments.sampler), ("--sampler-seed", arguments.sampler_seed)):
        if value is not None and (arguments.trials is None or arguments.resume is not None):
            problems.append(Problem(name, "is for a new search: give --trials too, and no --resume.", value))
    if problems:
        raise ConfigError(problems)
