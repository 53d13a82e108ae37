"""Runs as a page: what lies in a run directory, read, drawn and written as one file that needs no network.

`story` reads a run, `curves` draws runs, `page` and `html` make the page; a sweep and a comparison stand on the same.
"""
