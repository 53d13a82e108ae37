"""Stands in for `mpt train`: writes the files of a run in milliseconds, or ends the way its first argument says."""

import json
import os
import signal
import sys
import time
from pathlib import Path

# the summary of a run that went well
FINISHED = {
    "status": "finished",
    "exit_code": 0,
    "verdict": "healthy",
    "explanation": "All went well.",
    "steps_seen": 100,
    "applied_steps": 97,
    "skipped_steps": 3,
    "final_loss_scale": 1024.0,
    "min_loss_scale": 512.0,
    "max_loss_scale": 4096.0,
    "metrics": {"val_accuracy": 0.5},
    "best_metrics": {"val_accuracy": 0.6},
    "examples_per_second": 1000.0,
    "peak_memory_bytes": 2**30,
    "seconds": 0.001,
    "epochs_completed": 2,
}
OF_STUB = {"schema_version": 1, **FINISHED, "recipe": "stub", "run_dir": "x"}


def write(run_dir: Path, environment: object = None, **changes: object):
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text("recipe: stub\nseed: null\n")  # of no use to a sweep that is resumed
    if environment:
        (run_dir / "environment.json").write_text(json.dumps(environment))
    (run_dir / "summary.json").write_text(json.dumps({**OF_STUB, **changes}))
    event = {"step": 3, "epoch": 1, "kind": "overflow", "scale_before": 4096.0, "scale_after": 512.0}
    (run_dir / "events.jsonl").write_text(json.dumps(event) + "\n")
    line = {"step": 100, "loss": 0.25, "loss_scale": 1024.0, "skipped_steps": 3, "epoch_end": True}
    (run_dir / "metrics.jsonl").write_text(json.dumps(line) + "\n")


def terminated(run_dir: Path):
    write(run_dir, status="terminated", exit_code=143)
    (run_dir / "checkpoints").mkdir(exist_ok=True)
    (run_dir / "checkpoints" / "step-000000100.npz").touch()
    sys.exit(143)


def main(manner: str, run_dir: Path, value: float, more: str = "{}"):
    """`more` is JSON: further fields of its summary, and what its environment.json holds."""
    with (run_dir.parent / "started.txt").open("a") as file:
        file.write(f"{run_dir.name} {os.getpid()}\n")
    run_dir.with_suffix(".environment").write_text(json.dumps(dict(os.environ)))
    if manner == "raises":
        print("mpt train: model.builder: build_net raised ValueError: no.", file=sys.stderr)
        sys.exit(2)
    if manner == "overflows":
        write(
            run_dir,
            status="stopped",
            exit_code=4,
            verdict="never trained",
            applied_steps=0,
            skipped_steps=100,
            explanation="Stopped: every step was skipped.",
            metrics={},
        )
        sys.exit(4)
    if manner == "once":
        time.sleep(value)
    if manner == "killed":
        sys.exit(-signal.SIGKILL)
    if manner == "hangs" or (manner == "goes on" and not run_dir.exists()):
        signal.signal(signal.SIGTERM, lambda *_: terminated(run_dir))
        time.sleep(60)
    if manner == "learns nothing":
        signal.signal(signal.SIGTERM, lambda *_: terminated(run_dir))
        write(run_dir)
        (run_dir / "summary.json").unlink()
        lines = [{"step": 100, "val_accuracy": 0.1, "loss": 0.25, "skipped_steps": 0, "epoch_end": True}]
        (run_dir / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        time.sleep(60)
    if manner == "saves" and not run_dir.exists():
        terminated(run_dir)
    if manner == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    if manner == "parent" and os.fork() == 0:
        (run_dir.parent / "grandchild.txt").write_text(str(os.getpid()))
        time.sleep(60)
    write(run_dir, metrics={"val_accuracy": value}, **json.loads(more))
    if code := json.loads(more).get("exit_code"):
        sys.exit(code)


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
    except SystemExit as ended:
        if ended.code == -signal.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)
        raise
