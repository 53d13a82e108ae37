"""Many runs of one command line: what to run, how its values are chosen, and what came of it.

`search_space` reads the overrides, a sampler chooses values, `run` is the story, `directory` knows what lies on disk.
"""

SAMPLERS = ("tpe", "random")  # of a search; here, so that `mpt sweep --help` starts without the rest of the room
