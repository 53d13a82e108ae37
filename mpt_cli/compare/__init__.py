"""One recipe under several precisions: same seed, data and order, a process each, held against float32.

A small room on top of `sweep`, whose grammar and files it uses. `run` is the story, `comparison` reads what lies on
disk, `report` says what it means.
"""
