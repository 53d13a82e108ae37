"""Why a precision does not pay: sentences from what was measured."""

from pathlib import Path
from typing import Any

from mpt_cli.compare import report
from mpt_cli.compare.comparison import CompareDirectory, Comparison, Entry, Setup, StepTime
from mpt_cli.sweep.plan import Objective, SweepPlan


def why(kind: str, batch_size: int = 64, seconds: float = 0.1, **footprint: Any) -> list[str]:
    devices = {"tensorflow": {"device": "a device", "kind": kind}}
    entry = Entry(Setup({}, "mixed_float16", batch_size, "auto"), "mixed_float16", {}, {"0": StepTime(seconds, 0.0)},
                  {"backend": "tensorflow", "resident": True, **footprint})  # fmt: skip
    place, objective = CompareDirectory(Path("x")), Objective("loss", falls=True)
    return report.reasons(Comparison(place, SweepPlan([], [], "r"), objective, [entry], {}, devices, {}), entry)


def test_a_cpu_without_the_instructions(monkeypatch):
    monkeypatch.setattr(report, "cpu_features", lambda: ["avx2", "avx512_bf16"])
    assert why("cpu") == ["This CPU has no avx512_fp16 or amx_fp16: it computes float16 by way of float32."]
    monkeypatch.setattr(report, "cpu_features", lambda: ["avx512_fp16"])
    assert why("cpu") == []


def test_a_gpu_that_could_be_faster():
    found = why("gpu", batch_size=50, seconds=0.0005, uneven=["head (64 → 10)"], resident=False)
    assert found[0].startswith("The data is streamed to the device batch by batch")
    assert found[1] == "Tensor cores want multiples of 8; these are not: the batch of 50, head (64 → 10)."
    assert found[2] == ("A step takes 0.5 ms for 50 examples: starting its kernels takes as long as computing. Raise "
                        "trainer.batch_size.")  # fmt: skip
    assert why("gpu") == []


def test_many_layers_are_counted():
    [sentence] = why("gpu", uneven=[f"l{n} (1 → 2)" for n in range(7)])
    assert sentence.endswith("l3 (1 → 2) and 3 more.")
