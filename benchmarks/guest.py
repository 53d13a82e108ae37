"""What `mpt run` costs a script: CPU seconds of the whole process, beside the script alone under Keras's mixed_float16.

    python -m benchmarks.guest [--turns 3] SCRIPT.py ...

Both take turns, so that a busy machine slows both. Each row is a script, with medians. Scripts run in their own folder.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.measuring import children_seconds

PLAIN = """
import keras, os, runpy, sys
keras.mixed_precision.set_global_policy("mixed_float16")
sys.path.insert(0, os.getcwd())
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def cpu_seconds(command: list[str], folder: Path) -> float:
    """Return the user and system seconds of a command that must succeed."""
    before = children_seconds()
    subprocess.run([sys.executable, *command], cwd=folder, check=True, capture_output=True)
    return children_seconds() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="+", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    print("| script | alone, CPU s | mpt run, CPU s | ratio |\n|---|---|---|---|")
    for script in map(Path.resolve, arguments.scripts):
        alone, watched = list[float](), list[float]()
        for _ in range(arguments.turns):
            alone.append(cpu_seconds(["-c", PLAIN, script.name], script.parent))
            with tempfile.TemporaryDirectory() as folder:
                words = ["-m", "mpt_cli", "run", "policy=mixed_float16", f"run_dir={folder}/run", script.name]
                watched.append(cpu_seconds(words, script.parent))
        first, second = median(alone), median(watched)
        print(f"| {script.stem} | {first:.1f} | {second:.1f} | {second / first:.2f} |", flush=True)


if __name__ == "__main__":
    main()
