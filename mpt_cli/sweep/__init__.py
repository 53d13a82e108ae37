"""Many runs of one command line: what to run, how its values are chosen, and what came of it.

`search_space` reads the overrides, a sampler chooses values, `run` is the story, `results` reads what lies on disk.
"""
