"""Runs as a page: what lies in a run directory, read, drawn and written as one file that needs no network.

`history` reads a run, `run_page` says what to draw of it, `page` makes the page; a sweep and a comparison stand on
the same.
"""
