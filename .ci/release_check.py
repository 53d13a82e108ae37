"""What is released, held against what it promises: `make release-check`.

sdist and wheel are built, their metadata and the rendering of README checked, and the wheel is installed in an empty
environment for each supported Python found here, where the commands of docs/start.md are run in an empty directory.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")  # those that TensorFlow has wheels for
START = (ROOT / "docs" / "start.md").read_text(encoding="utf-8").partition("## In a notebook")[0]
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", START, re.S) for line in block.splitlines()]


def main() -> int:
    """0 where all holds; the first that does not ends it with its own output."""
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(folder, "dist")
        run(sys.executable, "-m", "build", "-q", "--outdir", str(dist), str(ROOT))
        run(sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir()))
        (wheel,) = dist.glob("*.whl")
        found = [(version, path) for version in PYTHONS if (path := working_python(version)) is not None]
        for version, python in found:
            check_first_minutes(wheel, python, Path(folder, version))
            print(f"Python {version}: {len(COMMANDS)} commands of the first five minutes", flush=True)
    missing = [version for version in PYTHONS if version not in dict(found)]
    print(f"not found here, so not checked: {', '.join(missing)}" if missing else "every supported Python was checked")
    return 0 if found else 1


def working_python(version: str) -> str | None:
    """Its path; a shim that leads to no Python is none."""
    path = shutil.which(f"python{version}")
    works = path is not None and subprocess.run([path, "--version"], capture_output=True).returncode == 0
    return path if works else None


def check_first_minutes(wheel: Path, python: str, folder: Path) -> None:
    """The wheel with TensorFlow in an environment of its own, and the commands in an empty directory."""
    work = folder / "work"
    work.mkdir(parents=True)
    run(python, "-m", "venv", str(folder / "env"))
    bin_folder = folder / "env" / "bin"
    constraints = str(ROOT / "constraints.txt")
    run(
        str(bin_folder / "pip"),
        "-q",
        "--disable-pip-version-check",
        "install",
        "-c",
        constraints,
        f"{wheel}[tensorflow]",
    )
    for command in COMMANDS:
        run("sh", "-c", f'PATH="{bin_folder}:$PATH" {command}', cwd=work)


def run(*words: str, cwd: Path | None = None) -> None:
    """SystemExit with what it said where it fails."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
