"""Runs that take no time."""

from typing import Any

import pytest
from stub_runs import SUMMARY, StubExecutor

from mpt_cli.files import write_json
from mpt_cli.jobs.local_processes import Command
from mpt_cli.reproduce import reproduction


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What every run of the test comes to; without a summary it fails."""
    found: dict[str, Any] = {
        "summary": SUMMARY,
        "environment": {"python": "3.11", "packages": {"keras": "3.15"}, "versions": {"keras": "3.15"}},
    }

    def run(command: Command) -> int:
        found.setdefault("words", []).append(command.arguments[command.arguments.index("--quiet") + 1 :])
        found.update(variables=command.environment, cores=command.cores)
        run_dir = command.subject.path
        run_dir.mkdir(parents=True)
        if found["summary"]:
            write_json(run_dir / "summary.json", found["summary"])
        write_json(run_dir / "environment.json", found["environment"])
        command.log.write_text("mpt train: there is no such file\n")
        return found.get("code", found["summary"]["exit_code"] if found["summary"] else 3)

    monkeypatch.setattr(StubExecutor, "run", staticmethod(run), raising=False)
    monkeypatch.setattr(reproduction, "LocalExecutor", StubExecutor)
    return found
