"""Many runs of one command line, each in a process of its own: `sweep` ranks them, `compare` holds precisions side by
side.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from mpt_cli.errors import OK, ConfigError, Problem
from mpt_cli.jobs.launchers import (
    LAUNCHERS,
    Launcher,
    LocalLauncher,
    choose_launcher,
    launcher_from_facts,
    read_launcher_name,
    split_launcher_overrides,
)
from mpt_cli.sweep import PRUNERS, SAMPLERS
from mpt_cli.verbs.parser import add_overrides, print_json, say

if TYPE_CHECKING:
    from mpt_cli.sweep.progress import Screen
    from mpt_cli.sweep.run import Options
    from mpt_cli.sweep.samplers import SamplerSettings

_SWEEP_EXAMPLES = """values, in Hydra's grammar:
  loss_scale.initial_scale=2**8,2**15,2**24     one after another
  loss_scale.initial_scale='2**range(8,25,4)'   powers: 2**8, 2**12 … 2**24
  'seed=range(5)'  'optimizer.learning_rate=choice(1e-3,1e-2)'  'conf=glob(digits_*)'  'policy=glob(mixed_*)'

examples:
  mpt sweep conf=digits_mlp loss_scale.initial_scale=2**8,2**15,2**24 seed=0,1,2
  mpt sweep conf=digits_mlp policy=float32,mixed_float16 --dry-run
  mpt sweep conf=digits_cnn loss_scale.growth_steps=50,500 -j 2 --timeout 600 sweep_dir=mine
  mpt sweep --resume mine            what is missing or failed, and nothing else
  mpt sweep conf=digits_mlp backend=jax 'loss_scale.initial_scale=2**range(8,24)' --vectorize 16
  mpt sweep --resume mine seed=3,4   and these seeds, of all that it varies besides; what is there is not run again
  mpt sweep conf=./mine.yaml seed=0,1    with the sweep: block of the recipe: grid, zip, conditional, exclude, seeds
  mpt report mine                    table and page again
  mpt sweep conf=digits_mlp 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))' optimizer.name=adam,sgd \\
      'loss_scale.initial_scale=2**int(interval(8,24))' --trials 30      a search, each trial by what came before
  mpt sweep conf=digits_mlp policy=float32,mixed_float16 trainer.batch_size=32,256 \\
      --objective val_accuracy,examples_per_second      the front of those that no other beats in both
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
    add_overrides(parser)
    parser.epilog = _SWEEP_EXAMPLES
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="jobs at a time; default: what cores, memory and "
                        "GPUs allow, and 16 on a cluster")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="check all configurations, list the jobs, run none")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end a job after this long")
    parser.add_argument("--objective", metavar="NAME[:min|:max]", help="what the jobs are ranked by; default: the "
                        "first of val_accuracy, val_loss, accuracy, loss that they have. Several, with commas between "
                        "them: ranked by the first, and with the front of those that none beats in all")  # fmt: skip
    parser.add_argument("--stop-behind-median", action="store_true", help="end a job whose objective is far behind "
                        "the median of at least 3 others at the same step")  # fmt: skip
    parser.add_argument("--vectorize", type=int, metavar="K", help="on JAX, train up to K jobs in one process by "
                        "one compiled program, which differ in initial_scale, growth_steps, learning rate and seed "
                        "alone; the others have a process each")  # fmt: skip
    parser.add_argument("--trials", type=int, metavar="N", help="search: N jobs, each with values chosen by Optuna; "
                        "with --resume, so many in all")  # fmt: skip
    parser.add_argument("--sampler", choices=tuple(SAMPLERS), help="how a search chooses, as Optuna calls it; "
                        "default: tpe, whose first 10 are random. gp needs scipy and torch, cmaes a package of that "
                        "name")  # fmt: skip
    parser.add_argument("--pruner", choices=PRUNERS, help="of a search: end jobs whose objective is "
                        "behind what others had at the end of the same epoch; default: none")  # fmt: skip
    parser.add_argument("--sampler-seed", type=int, metavar="N", help="default 0; with -j 1 the same search again")
    parser.add_argument(
        "--launcher",
        type=read_launcher_name,
        choices=tuple(LAUNCHERS),
        help="where the jobs run, each a process as ever; default: local, and with --resume as before",
    )
    parser.add_argument("--resume", metavar="SWEEP_DIR", help="run what is missing or failed in an earlier sweep")
    parser.add_argument("--json", action="store_true", help="print results.json; progress to stderr")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no table")


def run_sweep(arguments: argparse.Namespace) -> int:
    """Many runs of one command line: every combination of the values given, each in a process of its own, ranked."""
    words, launcher_words = split_launcher_overrides(arguments.overrides)
    _check_sweep(arguments, words)
    from mpt_cli.sweep.progress import Screen
    from mpt_cli.sweep.report import objective_lines, print_results, results_dict
    from mpt_cli.sweep.run import Options, resume_sweep, start_sweep

    screen = Screen(None if arguments.quiet else sys.stderr if arguments.json else sys.stdout)
    options = Options(arguments.jobs, arguments.timeout, arguments.objective, arguments.stop_behind_median,
                      arguments.vectorize, launcher=_launcher(arguments, launcher_words, screen))  # fmt: skip
    if arguments.dry_run:
        return _dry_run(arguments, words, options)
    found, code = (
        resume_sweep(arguments.resume, options, screen, arguments.trials, words)
        if arguments.resume
        else start_sweep(words, options, screen, _sampler(arguments))
    )
    if arguments.json:
        for line in objective_lines(found):
            screen.say(line)
        print_json(results_dict(found))
    else:
        print_results(found, screen)
    return code


def _sampler(arguments: argparse.Namespace) -> "SamplerSettings":
    from mpt_cli.sweep.samplers import GridSettings, SearchSettings

    if arguments.trials is None:
        return GridSettings()
    sampler = arguments.sampler or next(iter(SAMPLERS))
    return SearchSettings(arguments.trials, sampler, arguments.sampler_seed or 0, pruner=arguments.pruner)


def _launcher(arguments: argparse.Namespace, overrides: list[str], screen: "Screen") -> Launcher:
    from mpt_cli.sweep.directory import SweepDirectory

    if arguments.resume is not None and arguments.launcher is None and not overrides:
        return launcher_from_facts(SweepDirectory.open(arguments.resume).read_plan()[1], screen.say)
    return choose_launcher(arguments.launcher or LocalLauncher.name, overrides)


def _dry_run(arguments: argparse.Namespace, words: list[str], options: "Options") -> int:
    from mpt_cli.sweep.run import dry_run_of_resume, split_overrides

    content, lines = (
        dry_run_of_resume(arguments.resume, options, arguments.trials, words)
        if arguments.resume
        else _sampler(arguments).dry_run(split_overrides(words)[0], options)
    )
    print_json(content) if arguments.json else say("\n".join(lines))
    return OK


def _check_sweep(arguments: argparse.Namespace, words: list[str]) -> None:
    problems = []
    if arguments.jobs is not None and arguments.jobs < 1:
        problems.append(Problem("-j", "must be >= 1.", arguments.jobs))
    if arguments.timeout is not None and not arguments.timeout > 0:
        problems.append(Problem("--timeout", "must be > 0 seconds.", arguments.timeout))
    if arguments.trials is not None and arguments.trials < 1:
        problems.append(Problem("--trials", "must be >= 1.", arguments.trials))
    of_search = {"--sampler": arguments.sampler, "--sampler-seed": arguments.sampler_seed, "--pruner": arguments.pruner}
    for name, value in of_search.items():
        if value is not None and (arguments.trials is None or arguments.resume is not None):
            problems.append(Problem(name, "is for a new search: give --trials too, and no --resume.", value))
    if problems:
        raise ConfigError(problems)


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
    add_overrides(parser)
    parser.epilog = _COMPARE_EXAMPLES
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="jobs at a time; default: 1. With more, "
                        "speeds are not compared")  # fmt: skip
    parser.add_argument("--seeds", type=int, metavar="N", help="repeat with N seeds, from the recipe's on; default: 1")
    parser.add_argument("--tolerance", type=float, metavar="X", help="how far the objective may be from the baseline's "
                        "and still be equal; default: 0.01 of an accuracy, 5 %% of a loss")  # fmt: skip
    parser.add_argument("--objective", metavar="NAME[:min|:max]", help="the metric that is quality; default: the first "
                        "of val_accuracy, val_loss, accuracy, loss that the runs have")  # fmt: skip
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end a job after this long")
    parser.add_argument("--resume", metavar="COMPARE_DIR", help="run what is missing or failed in an earlier one")
    parser.add_argument("--json", action="store_true", help="print results.json; progress to stderr")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no table")


def run_compare(arguments: argparse.Namespace) -> int:
    """One recipe under several precisions, same seed, data and order: quality, speed, memory and skips side by side."""
    _check_compare(arguments)
    from mpt_cli.compare.report import comparison_dict, print_comparison
    from mpt_cli.compare.run import CompareSettings, resume_compare, start_compare
    from mpt_cli.sweep.progress import Screen
    from mpt_cli.sweep.run import Options

    screen = Screen(None if arguments.quiet else sys.stderr if arguments.json else sys.stdout)
    options = Options(arguments.jobs or 1, arguments.timeout, arguments.objective)
    if arguments.resume is not None:
        found, code = resume_compare(arguments.resume, options, screen)
    else:
        measure = CompareSettings(arguments.seeds, arguments.tolerance)
        found, code = start_compare(arguments.overrides, measure, options, screen)
    if arguments.json:
        print_json(comparison_dict(found))
    else:
        print_comparison(found, screen)
    return code


def _check_compare(arguments: argparse.Namespace) -> None:
    problems = []
    if arguments.jobs is not None and arguments.jobs < 1:
        problems.append(Problem("-j", "must be >= 1.", arguments.jobs))
    if arguments.timeout is not None and not arguments.timeout > 0:
        problems.append(Problem("--timeout", "must be > 0 seconds.", arguments.timeout))
    if arguments.tolerance is not None and not arguments.tolerance >= 0:
        problems.append(Problem("--tolerance", "must be >= 0.", arguments.tolerance))
    fixed = (arguments.overrides or None, arguments.jobs, arguments.seeds, arguments.tolerance)
    if arguments.resume is not None and any(value is not None for value in fixed):
        remedy = "The comparison's own stand in its compare.json."
        problems.append(Problem("--resume", "must be given without words, -j, --seeds and --tolerance.", None, remedy))
    if problems:
        raise ConfigError(problems)
