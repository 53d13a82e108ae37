"""Why a narrower precision does not make a run faster: what was measured, and what it points to."""

from mpt_cli.compare.examine import TILE
from mpt_cli.compare.results import Comparison, Entry
from mpt_cli.runs.machine import cpu_features
from mpt_cli.telemetry.console.words import count_words

WORTH = 1.1  # times the speed of float32 that the bare device must reach before a run can gain from it
SHORT_STEP_SECONDS = 0.002  # on a GPU: starting a step's kernels takes about as long
_CPU_FEATURES = {"float16": ("avx512_fp16", "amx_fp16"), "bfloat16": ("avx512_bf16", "amx_bf16")}
_MOST_LAYERS = 4


def narrow_dtype(entry: Entry) -> str | None:
    """The 16-bit type a configuration computes in."""
    return next((name for name in ("bfloat16", "float16") if name in entry.setup.policy), None)


def reasons(found: Comparison, entry: Entry) -> list[str]:
    """Sentences, the weightiest first; empty where nothing is known."""
    dtype = narrow_dtype(entry)
    if dtype is None:
        return []
    speeds = device_speeds(found, entry, dtype)
    is_gpu = found.device(entry).get("kind") == "gpu"
    if speeds and max(speeds.values()) < WORTH:
        return [_slow_device(speeds, dtype, is_gpu, str(found.device(entry).get("device", "this device")))]
    return [*_feeding(entry), *(_of_a_gpu(entry, found) if is_gpu else []), *_fast_device(speeds, dtype)]


def device_speeds(found: Comparison, entry: Entry, dtype: str) -> dict[str, float]:
    """How many times as fast as in float32 the bare device multiplies matrices and convolves, as measured."""
    device = found.device(entry)
    rows = [row for row in device.get("timings", []) if row["device"] == device.get("kind") and row["dtype"] == dtype]
    return {str(row["operation"]): float(row["speed_against_float32"]) for row in rows}


def _slow_device(speeds: dict[str, float], dtype: str, is_gpu: bool, device: str) -> str:
    measured = " and ".join(f"{name} at {speed:.2g}×" for name, speed in speeds.items())
    if is_gpu:
        return f"{device} has no use of tensor cores for {dtype}: {measured} the speed of float32."
    features = set(cpu_features()) & set(_CPU_FEATURES[dtype])
    lacking = " or ".join(_CPU_FEATURES[dtype])
    why = f"although it has {', '.join(sorted(features))}" if features else f"which has no {lacking}"
    return f"This CPU, {why}, computes {dtype} no faster: {measured} the speed of float32."


def _fast_device(speeds: dict[str, float], dtype: str) -> list[str]:
    if not speeds:
        return []
    measured = " and ".join(f"{name} at {speed:.2g}×" for name, speed in speeds.items())
    return [f"The bare device is faster in {dtype} ({measured} the speed of float32, on products of its own), so the "
            "time goes elsewhere: small products, casts, element-wise operations, the update of the weights."]


def _feeding(entry: Entry) -> list[str]:
    if entry.footprint.get("resident") is not False:
        return []
    return ["The data is streamed to the device batch by batch: a step that waits for its input is as long in any "
            "precision."]  # fmt: skip


def _of_a_gpu(entry: Entry, found: Comparison) -> list[str]:
    sentences = []
    uneven = list(entry.footprint.get("uneven", []))
    if entry.setup.batch_size % TILE:
        uneven.insert(0, f"the batch of {entry.setup.batch_size}")
    if uneven:
        more = f" and {len(uneven) - _MOST_LAYERS} more" if len(uneven) > _MOST_LAYERS else ""
        named = ", ".join(uneven[:_MOST_LAYERS])
        sentences.append(f"Tensor cores want multiples of {TILE}; these are not: {named}{more}.")
    seconds = entry.step_seconds
    if seconds is not None and seconds < SHORT_STEP_SECONDS:
        examples = count_words(entry.setup.batch_size)
        sentences.append(f"A step takes {1000 * seconds:.2g} ms for {examples} examples: starting its kernels takes as "
                         "long as computing. Raise trainer.batch_size.")  # fmt: skip
    return sentences
