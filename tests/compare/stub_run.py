"""Stands in for `mpt train` in a comparison: writes the files of a run, its accuracy and speed as it is told."""

import json
import sys
from pathlib import Path

SUMMARY = {
    "schema_version": 1,
    "status": "finished",
    "exit_code": 0,
    "verdict": "healthy",
    "explanation": "All went well.",
    "steps_seen": 100,
    "applied_steps": 100,
    "skipped_steps": 0,
    "final_loss_scale": 1024.0,
    "min_loss_scale": 1024.0,
    "max_loss_scale": 1024.0,
    "peak_memory_bytes": 2**30,
    "seconds": 1.5,
}


def main(run_dir: Path, accuracy: float, rate: float, code: int, examples: int) -> int:
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text("recipe: stub\n")
    environment = {
        "schema_version": 1,
        "examples": {"validation": examples or None},
        "devices": ["CPU"],
        "machine": {"cpu_precision_features": ["avx512_bf16"]},
    }
    (run_dir / "environment.json").write_text(json.dumps(environment))
    lines = [{"step": step, "loss": 0.5, "loss_scale": 1024.0, "examples_per_second": rate} for step in range(1, 9)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run_dir / "events.jsonl").write_text("")
    metrics = {"val_accuracy": accuracy, "loss": 0.5}
    ending = {"exit_code": code, "status": "finished" if code == 0 else "stopped", "examples_per_second": rate}
    (run_dir / "summary.json").write_text(
        json.dumps({**SUMMARY, **ending, "metrics": metrics, "best_metrics": metrics})
    )
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:])))
