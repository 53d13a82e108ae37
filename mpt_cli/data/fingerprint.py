"""A fingerprint that tells whether two runs saw the same data."""

import hashlib

import numpy as np

from mpt_cli.data.examples import Array, Examples, leaves

WHOLE_BYTES = 256 * 2**20  # up to here every byte is hashed; beyond, a sample of SAMPLE_BYTES
SAMPLE_BYTES = 64 * 2**20


def fingerprint_arrays(parts: list[Examples]) -> tuple[str, str]:
    """sha256 over names, dtypes, shapes and bytes of all arrays, and what of them was hashed.

    Of more than WHOLE_BYTES in all, evenly spaced examples are hashed, about SAMPLE_BYTES of them: a change of single
    examples may then go unnoticed, which the second value says.
    """
    arrays = [(f"{place}.{name}", array) for place, part in enumerate(parts) for name, array in _all(part)]
    stride = _stride(sum(array.nbytes for _, array in arrays))
    digest = hashlib.sha256()
    for name, array in arrays:
        digest.update(f"{name} {array.dtype.str} {array.shape} {stride};".encode())
        digest.update(np.ascontiguousarray(array[::stride]).view(np.uint8).data)
    return digest.hexdigest(), "all bytes" if stride == 1 else f"shapes and every {stride}th example"


def _stride(total_bytes: int) -> int:
    return 1 if total_bytes <= WHOLE_BYTES else -(-total_bytes // SAMPLE_BYTES)


def _all(part: Examples) -> list[tuple[str, Array]]:
    weight = [] if part.sample_weight is None else [("sample_weight", part.sample_weight)]
    return leaves(part.x, "x") + leaves(part.y, "y") + weight
