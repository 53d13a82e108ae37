"""`diagnose`: which loss scale does this model need, and which layer made a run overflow?"""

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from mpt_cli.diagnose.preparation import diagnosis_directory, find_overflow, on_one_device
from mpt_cli.engine.backend import prepare_backend, set_import_variables
from mpt_cli.errors import MISMATCH, OK, Problem, Say, config_error, printable_tree, raise_problems
from mpt_cli.files import write_json
from mpt_cli.runs.directory import RunDirectory, default_parent
from mpt_cli.runs.resume import stored_settings
from mpt_cli.settings.load import load_with_notes
from mpt_cli.settings.model_data_optimizer_keys import GivenModel
from mpt_cli.settings.search_path import conf_override, recipe_paths, shell_command
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.health_and_verdict import GOOD_VERDICTS
from mpt_cli.training.run_from_settings import RunDefinition
from mpt_cli.training_run import with_drawn_seed
from mpt_cli.verbs import minimum_problems, print_json, say

DIAGNOSIS = "diagnosis.json"
TRIAL_STEPS = 20


def run_diagnose(arguments: Namespace) -> int:
    # neither overrides nor the names of recipes
    run_dirs = [
        word
        for word in arguments.overrides
        if "=" not in word.split("/")[0] and word[:1] != "~" and word not in recipe_paths()
    ]
    _check(arguments, run_dirs)
    stream = sys.stderr if arguments.json else sys.stdout  # the stream for progress
    if run_dirs:
        return diagnose_run(run_dirs[0], arguments, lambda text: say(text, stream))
    return _diagnose_recipe(arguments, lambda text: say(text, stream))


def _diagnose_recipe(arguments: Namespace, say: Say) -> int:
    settings, notes = load_with_notes(arguments.overrides)
    for note in notes:
        say(note)
    settings = with_drawn_seed(on_one_device(settings, say))
    with diagnosis_directory(arguments.out, default_parent(settings.recipe)) as directory:
        # float16 is examined whatever the policy of the run
        set_import_variables(replace(settings, policy=replace(settings.policy, name="mixed_float16")))
        platform = prepare_backend(settings)  # chooses the backend: before anything that imports Keras
        from mpt_cli.diagnose.diagnosis import diagnose
        from mpt_cli.diagnose.report import diagnosis_content, print_diagnosis

        found = diagnose(RunDefinition(settings), platform, say, arguments.after_steps or 0, arguments.batches or 8)
        content = {**diagnosis_content(found), "directory": str(directory)}
        write_json(directory / DIAGNOSIS, content)
    if arguments.json:
        print_json(content)
    else:
        print_diagnosis(found, str(directory / DIAGNOSIS), PrintableConsole(sys.stdout))
    return OK


def _report_no_overflow(run: RunDirectory, run_dir: str, is_of_program: bool, arguments: Namespace) -> int:
    """Print that no step of the run overflowed, and its verdict if that is bad; make no directory."""
    measures = (
        "mpt.diagnose(model, x, y, batch_size=…) there, of a model compiled with its loss"
        if is_of_program
        else _diagnose_command(run_dir)
    )
    ending = printable_tree(run.ending)
    rows = [f"no step of {run_dir} overflowed. To measure how close it came: {measures}"]
    if ending.get("verdict") not in (None, *GOOD_VERDICTS):
        rows.append(f"{ending['verdict']}: {ending.get('explanation', '')}")
    if arguments.json:
        print_json(
            {"status": "ok", "kind": "overflow", "run_dir": run_dir, "step": None, "layer": None, "explanation": rows}
        )
    else:
        say("\n".join(rows))
    return OK


def _check(arguments: Namespace, run_dirs: list[str]) -> None:
    problems = []
    for_runs = {"--step": arguments.step, "--trial-steps": arguments.trial_steps}
    for_recipes = {"--after-steps": arguments.after_steps, "--batches": arguments.batches}
    for name, value in (for_recipes if run_dirs else for_runs).items():
        if value is not None:
            needed = (
                f"a recipe: {_diagnose_command(run_dirs[0])}" if run_dirs else "a run directory: mpt diagnose RUN_DIR"
            )
            problems.append(Problem(name, f"must be given with {needed}.", value))
    if run_dirs and run_dirs[0].endswith(".py"):
        rule = "must be a recipe or a run directory: only the script can make its model."
        remedy = "Call mpt.diagnose(model, x, y, batch_size=…) there before it trains (docs/guides/script-overflow.md)."
        raise config_error(run_dirs[0], rule, None, remedy)
    if run_dirs and len(arguments.overrides) > 1:
        others = [text for text in arguments.overrides if text != run_dirs[0]]
        problems.append(
            Problem("RUN_DIR", "must be given alone, without keys: the run has its configuration.", " ".join(others))
        )
    problems += minimum_problems(1, batches=arguments.batches, step=arguments.step)
    problems += minimum_problems(0, trial_steps=arguments.trial_steps, after_steps=arguments.after_steps)
    raise_problems(problems)


def _diagnose_command(run_dir: str) -> str:
    return shell_command("diagnose", conf_override(Path(run_dir) / "config.yaml"))


def diagnose_run(run_dir: str, arguments: Namespace, say: Say) -> int:
    """Find what overflowed in a run; return 5 where the step does not overflow again, so that no layer can be named."""
    run = RunDirectory.open(run_dir)
    overflow, stored = find_overflow(run, arguments.step), stored_settings(run)
    is_of_program = isinstance(stored.model, GivenModel)
    if overflow is None:
        return _report_no_overflow(run, run_dir, is_of_program, arguments)
    if is_of_program:
        rule = "is the run of a script or a Python program: it holds neither the model nor the data."
        remedy = (
            "In that program, import mpt_cli as mpt, compile the model with its loss and call "
            "mpt.diagnose(model, x, y, batch_size=…) before it trains (docs/guides/script-overflow.md)."
        )
        raise config_error(run_dir, rule, None, remedy)
    settings = on_one_device(stored, say)
    with diagnosis_directory(arguments.out, run.path) as directory:
        platform = prepare_backend(settings)
        from mpt_cli.diagnose.replay import examine_overflow, overflow_content, overflow_sentences
        from mpt_cli.diagnose.trials import try_remedies

        found = examine_overflow(run, settings, platform, overflow, say)
        steps = TRIAL_STEPS if arguments.trial_steps is None else arguments.trial_steps
        trials = try_remedies(found, steps, say)
        content = {**overflow_content(found, trials), "directory": str(directory)}
        write_json(directory / DIAGNOSIS, content)
    if arguments.json:
        print_json(content)
    else:
        from mpt_cli.report.tables import print_labelled

        rows = [*overflow_sentences(found, trials), ("file", str(directory / DIAGNOSIS))]
        print_labelled(rows, PrintableConsole(sys.stdout))
    return OK if content["status"] == "ok" else MISMATCH
