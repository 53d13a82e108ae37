"""What a comparison says, in plain sentences."""

from mpt_cli.compare.doubts import doubts
from mpt_cli.compare.quality import BETTER, EQUAL, UNKNOWN, rule_words
from mpt_cli.compare.reasons import reasons
from mpt_cli.compare.results import Comparison, Entry
from mpt_cli.sweep.results import INTERRUPTED, NOT_RUN
from mpt_cli.telemetry.console.words import number_words, share_words


def overall(found: Comparison) -> str:
    """The one sentence to remember."""
    if not any(entry.quality and entry.quality.kind != UNKNOWN for entry in found.compared):
        return "Nothing can be compared: " + _unfinished(found)
    if found.workers > 1:
        return f"Speed was not compared, as jobs ran at the same time. {_qualities(found)}"
    paying = [entry for entry in found.compared if pays(found, entry)]
    if paying:
        best = max(paying, key=lambda entry: entry.speed.factor if entry.speed else 0.0)
        assert best.speed is not None
        return f"{best.label} pays: {factor_words(best.speed.factor)} faster at {_quality_kind(best)} quality."
    if any(entry.is_disturbed for entry in found.compared):
        return f"Which is faster can't be told: other programs kept the cores busy. {_qualities(found)}"
    baselines = ", ".join(dict.fromkeys(entry.baseline.label for entry in found.compared if entry.baseline))
    narrow = ", ".join(entry.label for entry in found.compared if entry.finished)
    return f"On this device none pays ({narrow}): none is faster at equal quality. Train in {baselines}."


def sentences(found: Comparison) -> list[str]:
    """One for each configuration that was held against another, then the rules and doubts that belong to them."""
    told = [_about(found, entry) for entry in found.compared]
    known = [entry.quality.margin for entry in found.compared if entry.quality and entry.quality.kind != UNKNOWN]
    rule = [rule_words(found.objective, known, found.seeds)] if known else []
    return [*told, *rule, *doubts(found)]


def entry_verdict(found: Comparison, entry: Entry) -> str:
    """The cell of the table: what the configuration is against its baseline, and the verdict on its numerics."""
    if entry.failed:
        return _failed_words(entry)
    verdicts = ", ".join(dict.fromkeys(str(job.summary.get("verdict", "")) for job in entry.finished.values()))
    if entry.baseline is None:
        return f"baseline; {verdicts}"
    speed = "" if entry.speed is None or not _is_timed(found, entry) else f", {_speed_word(entry)}"
    return f"{_quality_kind(entry)}{speed}; {verdicts}"


def _failed_words(entry: Entry) -> str:
    """How many of its jobs failed, and how many an interruption kept from their end."""
    words = [job.status if job.status in (INTERRUPTED, NOT_RUN) else "failed" for job in entry.failed]
    if len(set(words)) == 1 and not entry.finished:
        return words[0]
    return ", ".join(f"{words.count(word)} of {len(entry.jobs)} {word}" for word in dict.fromkeys(words))


def factor_words(factor: float) -> str:
    """
    >>> factor_words(1.94), factor_words(0.333), factor_words(12.3)
    ('1.9×', '0.33×', '12×')
    """
    return f"{factor:.0f}×" if factor >= 10 else f"{factor:.1f}×" if factor >= 1 else f"{factor:.2f}×"


def pays(found: Comparison, entry: Entry) -> bool:
    """Whether it is faster at no loss of quality, as far as this can be told."""
    is_as_good = _quality_kind(entry) in (EQUAL, BETTER)
    return is_as_good and _is_timed(found, entry) and entry.speed is not None and entry.speed.is_faster


def _is_timed(found: Comparison, entry: Entry) -> bool:
    return found.workers == 1 and not entry.is_disturbed


def _speed_word(entry: Entry) -> str:
    assert entry.speed is not None
    return "faster" if entry.speed.is_faster else "slower" if entry.speed.is_slower else "as fast"


def _about(found: Comparison, entry: Entry) -> str:
    assert entry.baseline is not None
    base = entry.baseline.label
    if all(job.status == NOT_RUN for job in entry.jobs.values()):
        return f"{entry.label} was not run."
    if not entry.finished:
        reason = next((job.reason for job in entry.failed if job.reason), entry.failed[0].status)
        return f"{entry.label} did not finish: {reason}"
    if not entry.baseline.finished:
        return f"{entry.label} has nothing to be held against: {base} did not finish."
    quality = f"{_quality_kind(entry)} quality{_difference(found, entry)}"
    if entry.speed is None or not _is_timed(found, entry):
        return f"{entry.label}: {quality}; its speed was not judged."
    if entry.speed.is_faster:
        verb = "pays" if pays(found, entry) else "is faster, but not surely as good"
        return f"{entry.label} {verb}: {factor_words(entry.speed.factor)} the speed of {base} at {quality}."
    why = " ".join(reasons(found, entry))
    return f"{entry.label} does not pay on this device: {_slow_words(entry, base)}, {quality}." + (why and f" {why}")


def _slow_words(entry: Entry, base: str) -> str:
    assert entry.speed is not None
    factor = factor_words(entry.speed.factor)
    if entry.speed.is_slower:
        return f"{factor} the speed of {base}"
    share = share_words(round(1000 * entry.speed.noise), 1000)
    return f"about as fast as {base} ({factor}, where up to {share} may be chance)"


def _quality_kind(entry: Entry) -> str:
    return entry.quality.kind if entry.quality else UNKNOWN


def _difference(found: Comparison, entry: Entry) -> str:
    if entry.quality is None or entry.quality.difference is None:
        return ""
    sign = "" if entry.quality.difference < 0 else "+"
    return f" ({found.objective.name} {sign}{number_words(entry.quality.difference)})"


def _qualities(found: Comparison) -> str:
    """Quality alone, where speed can't be told."""
    words = [f"{entry.label} {_quality_kind(entry)}" for entry in found.compared if entry.finished]
    return f"Quality against the baseline: {', '.join(words)}."


def _unfinished(found: Comparison) -> str:
    failed = [entry.label for entry in found.entries if not entry.finished]
    return f"{', '.join(failed)} did not finish." if failed else f"no run has {found.objective.name}."
