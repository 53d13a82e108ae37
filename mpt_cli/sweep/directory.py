"""The sweep directory: the only place that knows the file names in it."""

import json
import secrets
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from mpt_cli.errors import DataError
from mpt_cli.jobs.queue import Ending
from mpt_cli.runs.directory import LOCK_FILE, RunDirectory, default_parent, read_json, write_json
from mpt_cli.settings.search_path import shell_command
from mpt_cli.sweep.plan import Job, SweepPlan


@dataclass(frozen=True)
class SweepDirectory:
    """A directory made by `create` or found by `open`, and the paths in it (a contract: scripts read them)."""

    path: Path
    verb: ClassVar[str] = "sweep"  # that wrote it: names the file of its plan, and the folder above
    noun: ClassVar[str] = "sweep"  # what sentences call it

    @classmethod
    def create(cls, path: str | None, recipe: str) -> Self:
        """A new directory: `path`, or sweeps/<recipe>/<time>-<id>. DataError when it holds anything already."""
        chosen = Path(path).expanduser() if path else _default_path(f"{cls.verb}s", recipe)
        try:
            chosen.mkdir(parents=True, exist_ok=True)
            taken = any(entry.name != LOCK_FILE for entry in chosen.iterdir())
        except OSError as error:
            raise DataError(f"{cls.verb}_dir {chosen} can't be written: {error.strerror}. Choose another.") from error
        if taken:
            raise DataError(
                f"{cls.verb}_dir {chosen} already exists and is not empty. Nothing in it was changed; go on with it by "
                f"`{shell_command(cls.verb, '--resume', chosen)}`, or choose another."
            )
        return cls(chosen)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The directory of an earlier sweep; DataError when there is none or it isn't one."""
        found, verb = cls(Path(path).expanduser()), cls.verb
        if not found.plan_json.is_file():
            why = f"it has no {found.plan_json.name}" if found.path.is_dir() else "it does not exist"
            raise DataError(f"{found.path} is not a {verb} directory: {why}. Give the folder that `mpt {verb}` wrote.")
        return found

    def lock(self) -> AbstractContextManager[None]:
        """Hold the directory for this process; DataError when another sweep is writing in it."""
        return RunDirectory(self.path).lock(f"{self.verb}_dir")

    @property
    def plan_json(self) -> Path:
        return self.path / f"{self.verb}.json"

    @property
    def results_csv(self) -> Path:
        return self.path / "results.csv"

    @property
    def results_json(self) -> Path:
        return self.path / "results.json"

    @property
    def results_md(self) -> Path:
        return self.path / "results.md"

    @property
    def report_html(self) -> Path:
        return self.path / "report.html"

    @property
    def study(self) -> Path:
        """Of a search: Optuna's journal."""
        return self.path / "study.journal"

    def run(self, job: Job) -> RunDirectory:
        return RunDirectory(self.path / job.name)

    def log(self, job: Job) -> Path:
        """What the job's process wrote to standard error, attempt after attempt."""
        return self.path / "logs" / f"{job.name}.log"

    def ending_json(self, job: Job) -> Path:
        return self.path / "logs" / f"{job.name}.json"

    def set_aside(self, job: Job) -> None:
        """Moves the run directory of a failed attempt to earlier/: the job starts afresh, and nothing is lost."""
        old = self.path / job.name
        if old.exists():
            parent = self.path / "earlier"
            parent.mkdir(exist_ok=True)
            count = sum(entry.name.startswith(f"{job.name}.") for entry in parent.iterdir())
            old.rename(parent / f"{job.name}.{count + 1}")

    def write_plan(self, plan: SweepPlan, facts: dict[str, Any]) -> None:
        (self.path / "logs").mkdir(exist_ok=True)
        jobs = [{**asdict(job), "command": job.command} for job in plan.jobs]
        duplicates = [{"overrides": overrides, "same_as": number} for overrides, number in plan.duplicates]
        content = {**facts, "recipe": plan.recipe, "varied": plan.varied, "jobs": jobs, "duplicates": duplicates}
        write_json(self.plan_json, content)

    def read_plan(self) -> tuple[SweepPlan, dict[str, Any]]:
        """The plan, and what else stands beside it; DataError when it is damaged."""
        facts = read_json(self.plan_json)
        try:
            jobs = [Job(**{name: value for name, value in job.items() if name != "command"}) for job in facts["jobs"]]
            duplicates = [(entry["overrides"], entry["same_as"]) for entry in facts["duplicates"]]
            trials = facts["search"]["trials"] if "search" in facts else 0
            return SweepPlan(facts["varied"], jobs, facts["recipe"], duplicates, trials), facts
        except (KeyError, TypeError) as error:
            raise DataError(f"{self.plan_json} is damaged: {error}.") from error

    def write_ending(self, job: Job, ending: Ending) -> None:
        write_json(self.ending_json(job), asdict(ending))

    def read_ending(self, job: Job) -> Ending | None:
        """None while the job has not ended, and where the file is damaged: the job then counts as not run."""
        try:
            found = json.loads(self.ending_json(job).read_text(encoding="utf-8"))
            return Ending(**{name: value for name, value in found.items() if name in Ending.__dataclass_fields__})
        except (OSError, ValueError, TypeError, AttributeError):
            return None


def _default_path(parent: str, recipe: str) -> Path:
    folder = default_parent(recipe).name
    return Path(parent) / folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
