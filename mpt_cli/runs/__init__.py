"""The run directory: its file names, what a run was made of, and what was expected of it."""
