"""Run recipes and earlier runs again: compare them with what was expected, and with themselves after a kill."""
