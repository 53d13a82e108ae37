"""mpt: mixed-precision training for Keras, from the shell."""

__version__ = "0.1.0"
