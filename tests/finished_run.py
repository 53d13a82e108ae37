"""The summary of a run that went well."""

FINISHED = {
    "status": "finished", "exit_code": 0, "verdict": "healthy", "explanation": "", "steps_seen": 69,
    "applied_steps": 69, "skipped_steps": 0, "final_loss_scale": 1.0, "min_loss_scale": 1.0, "max_loss_scale": 1.0,
    "metrics": {}, "best_metrics": {}, "examples_per_second": 1.0, "peak_memory_bytes": 1, "seconds": 1.0,
    "epochs_completed": 3,
}  # fmt: skip
