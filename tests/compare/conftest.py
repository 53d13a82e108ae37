"""Comparisons of stubs: the real words, queue and files, without Keras and without pictures."""

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import stub_job

from mpt_cli.compare import report, run
from mpt_cli.compare.comparison import Comparison
from mpt_cli.sweep.job_list import Job
from mpt_cli.sweep.run import Options
from mpt_cli.telemetry.console import PrintableConsole


@dataclass
class Outcomes:
    """What the stubs report by policy: accuracy (of each seed), examples per second (also of each), exit code, verdict."""

    accuracy: dict[str, Sequence[float]] = field(default_factory=dict)
    rate: dict[str, float | Sequence[float]] = field(default_factory=dict)
    code: dict[str, int] = field(default_factory=dict)
    verdict: dict[str, str] = field(default_factory=dict)
    tolerance: float | None = None
    started: list[str] = field(default_factory=list)

    def compare(self, words: Sequence[str], seeds: int | None = None, **options: Any) -> tuple[Comparison, int]:
        return self._run(
            lambda own, screen: run.start_compare(words, run.CompareSettings(seeds, self.tolerance), own, screen),
            options,
        )

    def resume(self, path: Path) -> tuple[Comparison, int]:
        return self._run(lambda own, screen: run.resume_compare(str(path), own, screen), {})

    def _run(self, start: Any, options: dict[str, Any]) -> tuple[Comparison, int]:
        stream = io.StringIO()
        own = Options(**{"workers": 1, "launch": self._launch, **options})
        found: tuple[Comparison, int] = start(own, PrintableConsole(stream))
        return found

    def _launch(self, job: Job, run_dir: Path) -> list[str]:
        self.started.append(job.name)
        policy = next(word.partition("=")[2] for word in job.words if word.startswith("policy="))
        seed = int(job.overrides.get("seed", 0))
        values = self.accuracy.get(policy, [0.9])
        code, rate = self.code.get(policy, 0), self.rate.get(policy, 1000.0)
        more = {
            "exit_code": code,
            "verdict": self.verdict.get(policy, "healthy"),
            "status": "finished" if code == 0 else "stopped",
            "skipped_steps": 0,
            "environment": {"schema_version": 1, "devices": ["CPU"]},
            "examples_per_second": rate[seed % len(rate)]
            if isinstance(rate, Sequence)
            else rate * (1 + seed % 3 / 100 * (policy != "float32")),
        }
        accuracy = str(values[seed % len(values)])
        return [sys.executable, "-S", stub_job.__file__, "good", str(run_dir), accuracy, json.dumps(more)]


@pytest.fixture
def outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Outcomes:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "run_pictures", lambda histories: [])
    return Outcomes()
