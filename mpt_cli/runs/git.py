"""Which version of the code ran: commit and changes of a git checkout, if the folder is in one."""

import hashlib
import subprocess
from pathlib import Path
from typing import Any

GIT_SECONDS = 5.0  # a run must not wait for a slow file system
# A checkout's own configuration may name programs to run; recording a commit must start none of them.
HARMLESS = ("-c", "core.fsmonitor=false", "-c", "core.pager=cat")
DIFF = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--binary")


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit, whether tracked files differ from it, and the sha256 of that difference; None without git or checkout.

    Untracked files are not part of it. `modified` is None where git took too long to tell.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _git(folder, *DIFF)
    modified = None if diff is None else bool(diff)
    digest = hashlib.sha256(diff).hexdigest() if diff else None
    return {"commit": commit.decode().strip(), "modified": modified, "diff_hash": digest}


def _git(folder: Path, *words: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", *HARMLESS, "-C", str(folder), *words], capture_output=True, timeout=GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
