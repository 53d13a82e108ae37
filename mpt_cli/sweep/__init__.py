"""Many runs from one command line: which jobs to run, how values are chosen, and their results.

`overrides` reads the varied values, `job_list` and `search` make jobs of them, `run` tells the story, `directory` reads
and writes the sweep directory, `report` shows results.
"""

# of a search; here, so that `mpt sweep --help` starts without the rest of the room
SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "asha", "hyperband")
