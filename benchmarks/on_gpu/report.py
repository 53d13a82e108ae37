"""The targets of `benchmarks.gpu`, and the results as markdown."""

from typing import Any

from benchmarks.measuring import machine_line, markdown_table
from benchmarks.on_gpu.peaks import peak_of

SPEEDUP, SHARE_OF_PEAK, OVER_BFLOAT16 = 2.0, 0.45, 1.02
TITLES = (
    "model",
    "backend",
    "policy",
    "loss scale",
    "ms per step",
    "examples/s",
    "tokens/s",
    "TFLOP/s",
    "share of peak",
    "peak memory",
    "telemetry",
    "to first epoch",
)


def add_shares(report: dict[str, Any]) -> None:
    """`share_of_peak` into each row; none on an unknown chip."""
    for row in report["rows"]:
        peak = peak_of(report["device"], row["policy"], report["tf32"].get(row["backend"], False))
        if peak and "flops_per_second" in row:
            row["share_of_peak"] = row["flops_per_second"] / peak


def judge(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target of each backend and model: met, missed, or None with the reason where it can't be told."""
    verdicts = []
    for backend in report["backends"]:
        for model in report["models"]:
            rows = [row for row in report["rows"] if (row["backend"], row["model"]) == (backend, model)]
            found = {(row["policy"], row["scaling"]): row for row in rows if "error" not in row}
            verdicts += [{"backend": backend, "model": model, **verdict} for verdict in _judge_model(found)]
    return verdicts


def _judge_model(found: dict[tuple[str, str], Any]) -> list[dict[str, Any]]:
    half, bfloat = found.get(("mixed_float16", "dynamic")), found.get(("mixed_bfloat16", "none"))
    single = found.get(("float32", "none"))
    verdicts = [
        _verdict(
            f"mixed_float16 at least {SPEEDUP:g} x float32",
            half and single and single["step_seconds"] / half["step_seconds"],
            least=SPEEDUP,
        ),
        _verdict(
            f"loss scaling and telemetry at most {OVER_BFLOAT16 - 1:.0%} over mixed_bfloat16",
            half and bfloat and half["step_seconds"] / bfloat["step_seconds_no_telemetry"],
            most=OVER_BFLOAT16,
        ),
    ]
    if half and "tokens_per_second" in half:
        share = _verdict(
            f"mixed_float16 at least {SHARE_OF_PEAK:.0%} of peak", half.get("share_of_peak"), least=SHARE_OF_PEAK
        )
        verdicts.append(share)
    return verdicts


def _verdict(target: str, value: Any, least: float | None = None, most: float | None = None) -> dict[str, Any]:
    if not value:
        return {"target": target, "value": None, "met": None}
    met = (least is None or value >= least) and (most is None or value <= most)
    return {"target": target, "value": value, "met": bool(met)}


def markdown(report: dict[str, Any]) -> str:
    """All of it: the machine, a row per measurement, scaling's cost, the checks, the targets, the notes."""
    sizes = "; ".join(f"{name}: {words}" for name, words in report["sizes"].items())
    parts = [
        f"{machine_line(report, report['device'] + ', driver ' + str(report['driver']))}.",
        f"Sizes: {sizes}.",
    ]
    parts.append(markdown_table(TITLES, [_cells(row) for row in report["rows"]]))
    parts.append(markdown_table(("cost of", "model", "backend", "step over that"), _costs(report)))
    parts.append(
        markdown_table(
            ("check on the device", "backend", "", "seen"),
            [
                (row["check"], row["backend"], "holds" if row["holds"] else "FAILS", row["seen"])
                for row in report["checks"]
            ],
        )
    )
    parts.append(
        markdown_table(
            ("target", "model", "backend", "measured", ""),
            [
                (
                    row["target"],
                    row["model"],
                    row["backend"],
                    "" if row["value"] is None else f"{row['value']:.3f}",
                    {True: "met", False: "MISSED", None: "not measured"}[row["met"]],
                )
                for row in report["targets"]
            ],
        )
    )
    return "\n\n".join([*parts, *report["notes"]]) + "\n"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    names = row["model"], row["backend"], row["policy"], row["scaling"]
    if "error" in row:
        return (*names, f"not possible: {row['error']}".replace("|", "/"), *[""] * (len(TITLES) - 5))
    share = f"{row['share_of_peak']:.1%}" if "share_of_peak" in row else "chip unknown"
    tokens = f"{row['tokens_per_second']:,.0f}" if "tokens_per_second" in row else ""
    telemetry = f"{row['telemetry_share']:.2%}" if "telemetry_share" in row else ""
    return (
        *names,
        f"{1e3 * row['step_seconds']:.2f}",
        f"{row['examples_per_second']:,.0f}",
        tokens,
        f"{row['flops_per_second'] / 1e12:.1f}",
        share,
        _gib(row.get("peak_bytes")),
        telemetry,
        f"{row['seconds_to_first_epoch']:.0f} s",
    )


def _costs(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """What a run costs beside Keras's own step without scaling, and beside Keras's `fit` with Keras's scaling."""
    found = {(r["backend"], r["model"], r["policy"], r["scaling"]): r for r in report["rows"] if "error" not in r}
    lines = []
    for (backend, model, policy, scaling), row in found.items():
        step, silent = row["step_seconds"], row.get("step_seconds_no_telemetry")
        if silent:
            lines.append((f"telemetry, {policy}, {scaling}", model, backend, f"{step / silent:.3f} without telemetry"))
        for other in ("plain Keras", "Keras fit"):
            base = found.get((backend, model, policy, other))
            if scaling == "dynamic" and base:
                seconds = base.get("step_seconds_no_telemetry", base["step_seconds"])
                lines.append((f"a step, {policy}", model, backend, f"{silent / seconds:.3f} {other}"))
    return lines


def _gib(count: float | None) -> str:
    return f"{count / 2**30:.1f} GiB" if count else ""
