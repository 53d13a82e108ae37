"""Where the jobs of a sweep run besides this machine's own processes: joblib, submitit (Slurm) and Ray.

The queue starts a small `proxy` in a job's place. It hands the very same command, as an `errand`, to the library,
waits, passes on that it should stop, and ends with the command's exit code. So queue, resume, table and time limits
are the same everywhere; what a launcher needs is a file system that the sweep directory is shared on.
"""
