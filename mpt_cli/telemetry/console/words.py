"""Numbers as a person reads them."""

import math

from mpt_cli.telemetry.records import GradientSample


def scale_words(scale: float | None) -> str:
    """A loss scale: plain up to 2^20, a power of two above that or below 1 as such.

    >>> scale_words(32768.0), scale_words(2.0**30), scale_words(2.0**-14), scale_words(1000.0)
    ('32768', '2^30', '2^-14', '1000')
    """
    if scale is None:
        return "none"
    if not math.isfinite(scale) or scale <= 0:
        return f"{scale:g}"
    mantissa, exponent = math.frexp(scale)
    if mantissa == 0.5 and (scale > 2**20 or scale < 1):
        return f"2^{exponent - 1}"
    return f"{scale:.0f}" if scale == round(scale) and scale <= 2**20 else f"{scale:.6g}"


def number_words(value: float | None) -> str:
    """A loss or metric: four digits after the point where they say something, else powers of ten.

    >>> number_words(0.98765), number_words(0.0), number_words(0.0000123), number_words(None)
    ('0.9877', '0.0000', '1.23e-05', '-')
    """
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4f}"
    return f"{value:.2e}"


def bytes_words(count: int | None) -> str:
    """
    >>> bytes_words(900), bytes_words(1_500_000_000), bytes_words(None)
    ('900 B', '1.4 GiB', '-')
    """
    if count is None:
        return "-"
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] in ("B", "KiB", "MiB") else f"{size:.1f} {units[0]}"


def seconds_words(seconds: float) -> str:
    """
    >>> seconds_words(1.23), seconds_words(75), seconds_words(3723)
    ('1.2 s', '1:15', '1:02:03')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def count_words(count: float) -> str:
    """
    >>> count_words(12345.6), count_words(7.25)
    ('12,346', '7.2')
    """
    return f"{count:,.0f}" if count >= 100 or count == round(count) else f"{count:.1f}"


def sample_words(sample: GradientSample) -> list[tuple[str, str]]:
    """What a sample says of the scale, as label and value: too low, and how far from too high.

    >>> sample_words(GradientSample(100, 0.5, 0.0123, 0.25, 9.5))
    [('flushed to 0', '1.2%'), ('head-room', '2^9')]
    """
    room = "all zero" if sample.headroom_doublings is None else f"2^{math.floor(sample.headroom_doublings)}"
    return [("flushed to 0", fraction_words(sample.flushed_share)), ("head-room", room)]


def share_words(part: int, whole: int) -> str:
    """
    >>> share_words(3, 120), share_words(1, 9000), share_words(0, 0)
    ('2.5%', '0.011%', '0%')
    """
    return fraction_words(part / whole if whole else 0.0)


def fraction_words(fraction: float) -> str:
    """
    >>> fraction_words(0.025), fraction_words(0.00011), fraction_words(0.0)
    ('2.5%', '0.011%', '0%')
    """
    share = 100 * fraction
    return "0%" if share == 0 else f"{share:.1f}%" if share >= 0.1 else f"{share:.2g}%"
