"""The pictures of the site and of README, made from real runs: `make pictures`."""

import re
import subprocess
import sys
import tempfile
from contextlib import chdir
from io import StringIO
from pathlib import Path

from rich.console import Console

from mpt_cli.report.history import read_history
from mpt_cli.report.picture import draw
from mpt_cli.report.run_page import run_pictures
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.telemetry.console.live import LiveConsole
from mpt_cli.verbs.watch import RunConsole, RunFollower

PICTURES = Path(__file__).resolve().parent / "pictures"
CONSOLE_WIDTH = 108


def main() -> None:
    """Runs what is drawn, in a folder of its own, and writes the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        words = ("conf=digits_cnn", "trainer.epochs=8", "loss_scale.initial_scale=2**22")
        mpt("train", *words, "run_dir=digits")
        write("console.svg", console_picture(RunDirectory.open("digits")))
        mpt("train", "conf=overflow", "run_dir=overflow")
        found = {picture.name: picture for picture in run_pictures([read_history(Path("overflow"))])}
        write("overflow-scale.svg", draw(found["loss-scale"]))
        mpt("diagnose", "conf=underflow", "loss_scale=none", "--out", "diagnosis")
        write("underflow-gradients.svg", Path("diagnosis", "gradients.svg").read_text())


def mpt(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "mpt_cli", *words], check=True, stdout=subprocess.DEVNULL)


def write(name: str, svg: str) -> None:
    (PICTURES / name).write_text(svg)
    print(f"{name}: {len(svg) // 1024} KiB")


def console_picture(run: RunDirectory) -> str:
    """What the console of a finished run shows, as `mpt watch` shows it again."""
    screen = Console(record=True, width=CONSOLE_WIDTH, height=60, file=StringIO(), color_system="truecolor")
    console = RunConsole(run)
    console.sink = LiveConsole(screen, console.clock)
    for kind, content in RunFollower(run).records():
        console.show(kind, content)
    svg = screen.export_svg(title="mpt train conf=digits_cnn loss_scale.initial_scale=2**22", unique_id="mpt")
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.S)  # they are fetched from another host


if __name__ == "__main__":
    main()
