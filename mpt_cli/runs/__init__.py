"""The run directory: its file names, the environment of a run, and the expectations of its recipe."""
