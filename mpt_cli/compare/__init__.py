"""Train one recipe in several precisions, with the same seed, data and order, and compare each run with float32.

A small room on top of `sweep`, whose grammar and files it uses. `run` tells the story, `comparison` reads the
directory, `report` says what the results mean.
"""
