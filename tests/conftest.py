"""Settles the environment before any test imports Keras: the backend is chosen once per process."""

import os

from hypothesis import settings

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# The same examples every time, so that a run of the suite repeats; `--hypothesis-profile=search` looks for new ones.
settings.register_profile("repeatable", derandomize=True, database=None)
settings.register_profile("search", print_blob=True)
settings.load_profile("repeatable")
