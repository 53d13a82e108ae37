"""The text of a group file of a loss-scale mode, written from the fields of the mode.

`python tests/settings/group_file.py` writes conf/loss_scale/*.yaml anew, headings excepted.
"""

import sys
import textwrap
from dataclasses import MISSING

from mpt_cli.settings.key import Key, class_keys, format_range
from mpt_cli.settings.schema import VARIANTS
from mpt_cli.settings.search_path import conf_directory

WIDTH, COLUMN = 120, 28


def group_file(section: str, variant: str, heading: str) -> str:
    """The heading, then each key with its default, meaning and range, in the order of the class."""
    lines = [heading]
    for key in class_keys(VARIANTS[section][variant]):
        lines += _entry(key)
    return "\n".join(lines) + "\n"


def _entry(key: Key) -> list[str]:
    value, limits = f"{key.path}: {_value(key)}", format_range(key)
    choices = " | ".join(_scalar(choice) for choice in key.choices or ((True, False) if key.type is bool else ()))
    comment = key.meaning + (f" ({limits or choices})" if limits or choices else "")
    line = f"{value:<{COLUMN - 2}}  # {comment}"
    if len(line) <= WIDTH:
        return [line]
    return [*(f"# {part}" for part in textwrap.wrap(comment, WIDTH - 2)), value]


def _value(key: Key) -> str:
    default = key.default
    if (
        isinstance(default, float)
        and default > 0
        and default.hex().startswith("0x1.0000000000000p")
        and (not 0.1 <= default <= 100)
    ):
        return f"2**{int(default.hex().partition('p')[2])}"
    return _scalar(default)


def _scalar(value: object) -> str:
    assert value is not MISSING
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    for mode in VARIANTS["loss_scale"]:
        path = conf_directory() / "loss_scale" / f"{mode}.yaml"
        path.write_text(group_file("loss_scale", mode, path.read_text().partition("\n")[0]))
    sys.exit(0)
