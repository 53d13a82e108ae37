"""Numbers as text: for a person, and as JSON that every parser reads."""

import math

from mpt_cli.precision.scale_rules import format_power
from mpt_cli.telemetry.record_types import GradientSample

Rows = list[tuple[str, str]]  # a label and a text each


def format_scale(scale: float | None) -> str:
    return "none" if scale is None else format_power(scale)


def format_number(value: float | None) -> str:
    """Return a loss or metric with four decimals, or in scientific notation if it is too small or large for these.

    >>> format_number(0.98765), format_number(0.0), format_number(0.0000123), format_number(None)
    ('0.9877', '0.0000', '1.23e-05', '-')
    >>> format_number(math.nan), format_number(-math.inf), format_number(-0.5), format_number(123456.0)
    ('nan', '-inf', '-0.5000', '1.23e+05')
    """
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4f}"
    return f"{value:.2e}"


def format_bytes(count: int | None) -> str:
    """
    >>> format_bytes(900), format_bytes(1_500_000_000), format_bytes(None)
    ('900 B', '1.4 GiB', '-')
    """
    if count is None:
        return "-"
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] in ("B", "KiB", "MiB") else f"{size:.1f} {units[0]}"


def format_seconds(seconds: float) -> str:
    """
    >>> format_seconds(1.23), format_seconds(75), format_seconds(3723), format_seconds(math.nan)
    ('1.2 s', '1:15', '1:02:03', 'nan s')
    >>> format_seconds(59.9), format_seconds(60.0), format_seconds(86400.0)
    ('59.9 s', '1:00', '24:00:00')
    """
    if not 60 <= seconds < math.inf:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_count(count: float) -> str:
    """
    >>> format_count(12345.6), format_count(7.25), format_count(math.nan)
    ('12,346', '7.2', 'nan')
    >>> format_count(99.5)
    '99.5'
    """
    return f"{count:,.0f}" if count >= 100 or float(count).is_integer() else f"{count:.1f}"


def sample_sentence(sample: GradientSample) -> str:
    """Return one line on the gradients of one batch.

    >>> sample_sentence(GradientSample(100, 0.5, 0.0123, 0.25, 9.5))
    'at step 100: 1.2% flushed to zero, the scale could double 9 times'
    >>> sample_sentence(GradientSample(100, 0.5, 0.0, 0.0, None, 0.4))
    'at step 100: 0% flushed to zero, 40.0% of the updates lost to rounding'
    >>> sample_sentence(GradientSample(100, 0.0, 1.0, 0.0, None))
    'at step 100: 100.0% flushed to zero'
    >>> sample_sentence(GradientSample(100, 0.0, 0.0, 0.0, None))
    'at step 100: all are zero'
    """
    found = [f"{format_fraction(sample.flushed_share)} flushed to zero"]
    if sample.headroom_doublings is not None:
        doublings = max(0, math.floor(sample.headroom_doublings))
        found.append(f"the scale could double {doublings} time{'s' * (doublings != 1)}")
    elif not sample.norm and not sample.flushed_share:
        found = ["all are zero"]
    if sample.lost_updates_share is not None:
        found.append(f"{format_fraction(sample.lost_updates_share)} of the updates lost to rounding")
    return f"at step {format_count(sample.step)}: {', '.join(found)}"


def format_share(part: int, whole: int) -> str:
    """
    >>> format_share(3, 120), format_share(1, 100_000), format_share(50, 100), format_share(0, 0)
    ('2.5%', '0.001%', '50.0%', '0%')
    """
    return format_fraction(part / whole if whole else 0.0)


def format_fraction(fraction: float | None) -> str:
    """
    >>> format_fraction(0.025), format_fraction(0.00011), format_fraction(0.9951), format_fraction(0.0)
    ('2.5%', '0.011%', '99.5%', '0%')
    >>> format_fraction(None)
    '-'
    """
    if fraction is None:
        return "-"
    share = 100 * fraction
    return "0%" if share == 0 else f"{share:.1f}%" if share >= 0.1 else f"{share:.2g}%"
