"""The training program compiled for GPUs that are not there: what it holds, and what bounds it."""
