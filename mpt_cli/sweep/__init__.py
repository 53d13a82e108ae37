"""Many runs of one command line: what to run, how its values are chosen, and what came of it.

`overrides` reads what is varied, `job_list` and `search` make jobs of it, `run` is the story, `directory` knows what
lies on disk, `report` shows it.
"""

# of a search; here, so that `mpt sweep --help` starts without the rest of the room
SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "asha", "hyperband")
