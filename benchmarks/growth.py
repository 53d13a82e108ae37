"""How mpt's cost grows with the model, the batch, the data, the number of variables and the length of a run.

    python -m benchmarks.growth [--data-gb 1] [--run-steps 1000000] [--seconds 60] [--sections variables,run]
    python -m benchmarks.growth --quick      # a moment of each, writes nothing

A process per section and backend, which measures one size after the other until `--seconds` are over; what it did not
reach is said. Figures go to results/growth.json and growth.md. About eight minutes.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.growing.fits import end_exponent
from benchmarks.growing.long_run import watch
from benchmarks.growing.series import SECTIONS, measure_series
from benchmarks.growing.table import markdown
from benchmarks.measuring import machine

RESULTS = Path(__file__).parent / "results"
RUN_SECONDS = 240.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="jax,tensorflow")
    parser.add_argument("--sections", default=",".join([*SECTIONS, "run"]).replace(" ", "_"))
    parser.add_argument("--data-gb", type=float, default=1.0, help="GiB of the largest data set, written to the disk")
    parser.add_argument("--run-steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each section on each backend")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    wanted = [name.replace("_", " ") for name in chosen.sections.split(",")]
    report = {"load_before": os.getloadavg()[0], **machine(), "sections": {}, "run_length": []}
    for section in [name for name in SECTIONS if name in wanted]:
        report["sections"][section] = measure_series(section, chosen)
        for one in report["sections"][section]:
            one["exponent"] = end_exponent(one["points"], "step_seconds")
            print(section, one["name"], one["note"], file=sys.stderr)
    if "run" in wanted:
        backend = chosen.backends.split(",")[0]  # one backend: what grows is on the host and the same for both
        with tempfile.TemporaryDirectory() as folder:
            every = 0.02 if chosen.quick else 0.5
            report["run_length"].append(watch(backend, chosen.run_steps, Path(folder), RUN_SECONDS, every))
    return {**report, "load_after": os.getloadavg()[0]}


def main() -> int:
    chosen = arguments()
    if chosen.quick:
        chosen.backends, chosen.data_gb, chosen.run_steps, chosen.seconds = "jax", 0.02, 20_000, 60.0
    report = measure(chosen)
    print(markdown(report))
    if not chosen.quick:
        (chosen.results / "growth.json").write_text(json.dumps(report, indent=2) + "\n")
        (chosen.results / "growth.md").write_text(markdown(report))
    failed = [one for series in report["sections"].values() for one in series if not one["points"]]
    return 1 if failed or any("error" in run for run in report["run_length"]) else 0


if __name__ == "__main__":
    sys.exit(main())
