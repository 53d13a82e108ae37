"""Where telemetry is written: JSONL, CSV, TensorBoard."""
