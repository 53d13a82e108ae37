"""The story of a comparison on one screen: overrides in, runs one after another, verdict out."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mpt_cli.compare.comparison import CompareDirectory, Comparison, Script, make_comparison, read_comparison
from mpt_cli.compare.report import write_comparison
from mpt_cli.errors import config_error
from mpt_cli.settings.load import load_with_notes
from mpt_cli.sweep.job_list import SweepPlan, choose_objective
from mpt_cli.sweep.run import Options, SweepRun, begin, exit_code, plan_facts, split_overrides
from mpt_cli.telemetry.console import PrintableConsole


@dataclass(frozen=True)
class CompareSettings:
    """The number of seeds (rounds), and the largest difference that counts as equal (None: chosen by the metric)."""

    seeds: int | None = None
    tolerance: float | None = None


def start_compare(
    overrides: Sequence[str],
    measure: CompareSettings,
    options: Options,
    console: PrintableConsole,
    script: Script | None = None,
) -> tuple[Comparison, int]:
    """Compare the precisions of a recipe or a script. Every configuration is checked before the first job starts.

    Return the comparison and the exit code.
    """
    own, path = split_overrides(overrides, "compare_dir")
    plan, setups = make_comparison(own, measure.seeds, script, options.objective)
    if script is None:
        for note in load_with_notes(plan.jobs[0].words)[1]:
            console.say(note)
    else:
        choose_objective(options.objective, [])
    folder = CompareDirectory.create(path, plan.recipe)
    with folder.lock():
        given = [f"--{name}={value}" for name, value in asdict(measure).items() if value is not None]
        words = [*given, *overrides, *(["--", *script.words] if script else [])]
        facts = plan_facts(["mpt", "compare", *words], options)
        facts |= {"setups": [asdict(setup) for setup in setups], "workers": options.workers, **asdict(measure)}
        if script is not None:
            file = str(Path(script.words[0]).absolute())
            facts["script"] = {"file": file, "sha256": _digest(file)}
        return _run(folder, begin(replace(plan, facts=facts), options), options, console)


def resume_compare(path: str, options: Options, console: PrintableConsole) -> tuple[Comparison, int]:
    """Run the missing and failed jobs of an earlier comparison, as many at a time as then. ConfigError if its script
    has changed: runs of two programs can't be compared.
    """
    folder = CompareDirectory.open(path)
    with folder.lock():
        script = folder.read_plan().facts.get("script") or {}
        if script and _digest(script["file"]) != script["sha256"]:
            rule = f"must use the script unchanged; {script['file']} has changed since."
            raise config_error("--resume", rule, path, "Start a new comparison, without --resume.")
        workers = read_comparison(folder).workers
        return _run(folder, folder.read_plan(), replace(options, workers=workers), console)


def _digest(script: str) -> str | None:
    """Return the SHA-256 of a script; None for a module (`-m`), whose code is not read, or without a script."""
    return hashlib.sha256(Path(script).read_bytes()).hexdigest() if Path(script).is_file() else None


def _run(
    folder: CompareDirectory, plan: SweepPlan, options: Options, console: PrintableConsole
) -> tuple[Comparison, int]:
    stopped_by = SweepRun(folder, plan, options, console).run()
    found = read_comparison(folder, options.objective)
    write_comparison(found)
    return found, exit_code(stopped_by, found.results)
