"""Pages of runs: read a run directory, draw it, and write one file that needs no network.

`history` reads a run, `run_page` decides what to draw, `page` makes the page; sweeps and comparisons use the same
parts.
"""
