"""The versions of the package and of its files, in a module that imports nothing, so that every room may name them."""

__version__ = "0.2.0"
SCHEMA_VERSION = 1  # the version of every file but checkpoints; raise it for a changed meaning or a removed field
