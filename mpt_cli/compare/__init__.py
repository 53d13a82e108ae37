"""One recipe under several precisions: same seed, data and order, a process each, held against float32.

A small room on top of `sweep`, whose grammar and files it uses. `run` is the story, `results` reads what lies on disk,
`verdict` says what it means.
"""
