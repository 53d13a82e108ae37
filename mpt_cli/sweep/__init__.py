"""Many runs of one command line: what to run, how to run it, and what came of it.

`plan` makes the jobs, `queue` runs each as a process of its own, `results` reads what lies on disk.
"""
