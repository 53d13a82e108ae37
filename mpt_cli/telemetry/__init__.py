"""The records, events and lines of a run, and where they are written: console and files."""
