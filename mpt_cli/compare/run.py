"""The story of a comparison on one screen: overrides in, runs one after another, verdict out."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from mpt_cli.compare.comparison import CompareDirectory, Comparison, Script, make_comparison, read_comparison
from mpt_cli.compare.report import write_comparison
from mpt_cli.settings.load import load_with_recipe
from mpt_cli.sweep.job_list import SweepPlan, check_objective, choose_objective
from mpt_cli.sweep.progress import Screen
from mpt_cli.sweep.run import Options, SweepRun, begin, exit_code, plan_facts, split_overrides


@dataclass(frozen=True)
class CompareSettings:
    """What the comparison rests on: seeds (rounds), and how much worse still counts as equal (None: by the metric)."""

    seeds: int | None = None
    tolerance: float | None = None


def start_compare(
    overrides: Sequence[str], measure: CompareSettings, options: Options, screen: Screen, script: Script | None = None
) -> tuple[Comparison, int]:
    """Compare the precisions of a recipe or a script. Every configuration is checked before the first job starts.

    Return the comparison and the exit code.
    """
    own, path = split_overrides(overrides, "compare_dir")
    plan, setups = make_comparison(own, measure.seeds, script)
    if script is not None:
        choose_objective(options.objective, [])
    else:
        loaded = [load_with_recipe(job.words) for job in plan.jobs]
        check_objective(options.objective, [settings for settings, _ in loaded])
        for note in dict.fromkeys(note for _, recipe in loaded for note in recipe.notes):
            screen.say(note)
    folder = CompareDirectory.create(path, plan.recipe)
    with folder.lock():
        facts = plan_facts(["mpt", "compare", *overrides, *(["--", *script.words] if script else [])], options)
        facts |= {"setups": [asdict(setup) for setup in setups], "workers": options.workers, **asdict(measure)}
        return _run(folder, begin(folder, replace(plan, facts=facts), options), options, screen)


def resume_compare(path: str, options: Options, screen: Screen) -> tuple[Comparison, int]:
    """Run what is missing or failed in an earlier comparison, with as many jobs at a time as there."""
    folder = CompareDirectory.open(path)
    with folder.lock():
        workers = read_comparison(folder).workers
        return _run(folder, folder.read_plan(), replace(options, workers=workers), screen)


def _run(folder: CompareDirectory, plan: SweepPlan, options: Options, screen: Screen) -> tuple[Comparison, int]:
    stopped_by = SweepRun(folder, plan, options, screen).run()
    found = read_comparison(folder, options.objective)
    write_comparison(found)
    return found, exit_code(stopped_by, found.results)
