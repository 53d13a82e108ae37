"""Compile a run for GPUs that are not here, and read memory and dtypes from the program."""
