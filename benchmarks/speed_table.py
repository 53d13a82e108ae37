"""The targets, and the results as a markdown table."""

from typing import Any

from benchmarks.measuring import machine_line, markdown_table

COLUMNS = (
    "backend",
    "model",
    "policy",
    "mpt, steps/s",
    "over `fit`",
    "over bare loop",
    "the same in CPU time",
    "telemetry",
    "memory over `fit`",
    "missed",
)
MLP_OVER_FIT, OVER_FIT, OVER_BARE_LOOP, TELEMETRY, MEMORY = 2.5, 1.0, 0.9, 0.01, 1.1


def judge(row: dict[str, Any]) -> dict[str, bool]:
    """Whether each target that concerns this cell is met; empty where it could not be measured."""
    if "error" in row:
        return {}
    is_mlp = row["backend"] == "tensorflow" and row["model"] == "digits MLP"
    least = MLP_OVER_FIT if is_mlp else OVER_FIT
    met = {
        f"at least {least:g} of fit": row["over_fit"]["mpt"] >= least,
        f"at least {OVER_BARE_LOOP:g} of the bare loop": row["over_bare_loop"]["mpt"] >= OVER_BARE_LOOP,
        f"telemetry at most {TELEMETRY:.0%}": row["telemetry_share"] <= TELEMETRY,
    }
    if "memory_over_fit" in row:
        met[f"memory at most {MEMORY:g} of fit"] = row["memory_over_fit"] <= MEMORY
    return met


def table(report: dict[str, Any]) -> str:
    """Markdown: the machine, a row per cell, how to read it."""
    loads = "; ".join(
        f"{backend} {load['before']:.1f} and {load['after']:.1f}" for backend, load in report["load_average"].items()
    )
    title = f"{machine_line(report)}; load average before and after: {loads}."
    return "\n\n".join([title, markdown_table(COLUMNS, [*map(cells, report["cells"])]), LEGEND])


LEGEND = (
    "Ratios of steps per second, batch 64, above 1 where mpt is faster: medians over rounds in which all contenders "
    "take turns. The bare loop is the fastest compiled loop over Keras's own `train_step` with data on the device. "
    "Telemetry is its share of mpt's time. Memory is the peak of a process of its own without programs kept from an "
    "earlier run, beside `fit` as Keras compiles it by itself and, on TensorFlow, beside `fit` with "
    "`jit_compile=True`."
)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    names = row["backend"], row["model"], row["policy"]
    if "error" in row:
        return (*names, f"not possible: {row['error']}", *[""] * (len(COLUMNS) - 4))
    rate, bare, cpu = row["steps_per_second"]["mpt"], row["over_bare_loop"]["mpt"], row["cpu_time"]["over_bare_loop"]
    memory = f"{row['memory_over_fit']:.2f}" if "memory_over_fit" in row else ""
    if "memory_over_fit_with_xla" in row:
        memory += f" ({row['memory_over_fit_with_xla']:.2f} with XLA)"
    missed = "; ".join(name for name, met in row["targets"].items() if not met) or "none"
    return (
        *names,
        f"{rate:.0f}",
        f"{row['over_fit']['mpt']:.2f}",
        f"{bare:.2f}",
        f"{cpu['mpt']:.2f}",
        f"{row['telemetry_share']:.2%}",
        memory,
        missed,
    )
