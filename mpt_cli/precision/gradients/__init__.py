"""Custom gradients for mixed precision, on TensorFlow and JAX, usable without the rest of mpt."""
