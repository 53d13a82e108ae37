"""Recipes and earlier runs, run again: held against what was expected, and against themselves after a kill."""
