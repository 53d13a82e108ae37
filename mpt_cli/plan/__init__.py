"""The training program compiled for GPUs that are not there: what it holds, in which dtypes."""
