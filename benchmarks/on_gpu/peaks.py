"""The most a chip can compute, in FLOP/s, dense, by the kind of number that is multiplied."""

# NVIDIA's data sheets, without sparsity, SXM versions: H100 and H200 "Tensor Core GPU" (2023, 2024; same processor),
# A100 (2021). Accumulation is in float32, in which float16 and bfloat16 are equally fast on all of them.
# Of names that contain each other the longer stands first.
PEAKS: dict[str, dict[str, float]] = {
    "H100 PCIe": {"16 bit": 756e12, "TF32": 378e12, "float32": 51e12},
    "H100 NVL": {"16 bit": 835e12, "TF32": 417e12, "float32": 60e12},
    "H100": {"16 bit": 989e12, "TF32": 495e12, "float32": 67e12},
    "H200 NVL": {"16 bit": 835e12, "TF32": 417e12, "float32": 60e12},
    "H200": {"16 bit": 989e12, "TF32": 495e12, "float32": 67e12},
    "A100": {"16 bit": 312e12, "TF32": 156e12, "float32": 19.5e12},
}


def peak_of(device: str, policy: str, tf32: bool) -> float | None:
    """FLOP/s of `device` for the products of `policy`; None for a chip that is not in the table.

    >>> peak_of("NVIDIA H200", "mixed_float16", tf32=True)
    989000000000000.0
    """
    kind = "16 bit" if policy.startswith("mixed_") else "TF32" if tf32 else "float32"
    return next((peaks[kind] for name, peaks in PEAKS.items() if name in device), None)
