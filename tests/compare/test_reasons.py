"""Why a precision does not pay: sentences from what was measured."""

from pathlib import Path
from typing import Any

import pytest

from mpt_cli.compare import report
from mpt_cli.compare.comparison import CompareDirectory, Comparison, Entry, Setup, StepTime
from mpt_cli.sweep.plan import Objective, SweepPlan


def why(kind: str, speed: float, batch_size: int = 64, seconds: float = 0.1, **footprint: Any) -> list[str]:
    rows = [{"device": kind, "operation": name, "dtype": "float16", "speed_against_float32": speed}
            for name in ("matmul", "conv")]  # fmt: skip
    devices = {"tensorflow": {"device": "a device", "kind": kind, "timings": rows if speed else []}}
    entry = Entry(Setup({}, "mixed_float16", batch_size, "auto"), "mixed_float16", {}, {"0": StepTime(seconds, 0.0)},
                  {"backend": "tensorflow", "resident": True, **footprint})  # fmt: skip
    place, objective = CompareDirectory(Path("x")), Objective("loss", falls=True)
    return report.reasons(Comparison(place, SweepPlan([], [], "r"), objective, [entry], {}, devices, {}), entry)


def test_a_cpu_without_the_instructions(monkeypatch):
    monkeypatch.setattr(report, "cpu_features", lambda: ["avx2", "avx512_bf16"])
    assert why("cpu", 0.2) == ["This CPU, which has no avx512_fp16 or amx_fp16, computes float16 no faster: matmul at "
                               "0.2× and conv at 0.2× the speed of float32."]  # fmt: skip
    monkeypatch.setattr(report, "cpu_features", lambda: ["avx512_fp16"])
    assert why("cpu", 0.9)[0].startswith("This CPU, although it has avx512_fp16, computes float16 no faster")


def test_a_gpu_without_tensor_cores():
    assert why("gpu", 1.0) == [
        "a device has no use of tensor cores for float16: matmul at 1× and conv at 1× the speed of float32."]


def test_a_gpu_that_could_be_faster():
    found = why("gpu", 8.0, batch_size=50, seconds=0.0005, uneven=["head (64 → 10)"], resident=False)
    assert [sentence.partition(":")[0].partition(" ")[0] for sentence in found] == ["The", "Tensor", "A", "The"]
    assert found[0].startswith("The data is streamed to the device batch by batch")
    assert found[1] == "Tensor cores want multiples of 8; these are not: the batch of 50, head (64 → 10)."
    assert found[2] == ("A step takes 0.5 ms for 50 examples: starting its kernels takes as long as computing. Raise "
                        "trainer.batch_size.")  # fmt: skip
    assert "matmul at 8× and conv at 8× the speed of float32" in found[3]


def test_many_layers_are_counted():
    [sentence, _] = why("gpu", 8.0, uneven=[f"l{n} (1 → 2)" for n in range(7)])
    assert sentence.endswith("l3 (1 → 2) and 3 more.")


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_nothing_measured_is_nothing_claimed(kind):
    assert why(kind, 0.0) == []
