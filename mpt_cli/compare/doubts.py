"""What a reader must know before trusting the figures of a comparison."""

from mpt_cli.compare.results import Comparison


def doubts(found: Comparison) -> list[str]:
    """Sentences; empty where nothing stands against them."""
    return [*_baseline(found), *_speed(found), *_incomplete(found), *_unexamined(found)]


def _baseline(found: Comparison) -> list[str]:
    if any(entry.setup.policy == "float32" for entry in found.entries):
        return []
    first = dict.fromkeys(entry.baseline.label for entry in found.compared if entry.baseline)
    return [f"There is no float32 among them: the first, {', '.join(first)}, is the baseline."]


def _speed(found: Comparison) -> list[str]:
    if found.workers > 1:
        return [f"Jobs ran {found.workers} at a time and shared the cores: their step times are not comparable."]
    if not any(entry.speed for entry in found.compared):
        return []
    noisy = ", ".join(f"{name} ({100 * share:.0f}%)" for name, share in found.noisy_jobs.items())
    told = []
    if noisy:
        told.append(f"Other programs used part of the cores while these ran, so that their step times are too long: "
                    f"{noisy}. Compare again on a machine that does nothing else.")  # fmt: skip
    if found.seeds == 1:
        told.append("Each was timed once, one after another: --seeds 3 times them in turns, forwards and backwards.")
    return told


def _incomplete(found: Comparison) -> list[str]:
    return [f"{entry.label}: {len(entry.failed)} of {len(entry.jobs)} seeds did not finish; its figures are of the "
            "others." for entry in found.entries if entry.failed and entry.finished]  # fmt: skip


def _unexamined(found: Comparison) -> list[str]:
    errors = [str(device["error"]) for device in found.devices.values() if "error" in device]
    errors += [f"{entry.label} could not be examined: {entry.footprint['error']}"
               for entry in found.entries if "error" in entry.footprint]  # fmt: skip
    return errors
