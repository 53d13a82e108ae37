"""The persistent compile caches of JAX and TensorFlow, in a folder of the user's.

Both look programs up by a hash of the whole program; the processor and the version, which they leave out, are in the
folder's name. JAX compiles anew what it can't read. TensorFlow renames a program once it is whole, so that a killed run
leaves none that is half written.
"""

import hashlib
import os
import platform
import re
import shutil
import stat
import warnings
from collections.abc import MutableMapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from mpt_cli.machine import cpu_description
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.search_path import expanded

LEAST_FREE_BYTES = 2**30
LARGEST_CACHE_BYTES = 2 * 2**30  # beyond this the programs that were not used for longest go
# in what TensorFlow says where a program can't be kept, as on a full disk, or is damaged
CACHE_FAULT = re.compile("xla_compile_cache|Serialized cache key|Read less bytes than requested")
PACKAGES = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "jax": ("jaxlib",)}


def use_compile_cache(settings: Settings, environment: MutableMapping[str, str]) -> str | None:
    """Set the variables that make the framework keep its programs; to be called before it is imported.

    Nothing is set where `backend.compile_cache` is null and where the user's own variables choose a place already; nor,
    with a sentence that says so, where the folder can't be written or its disk is nearly full.
    """
    if settings.backend.compile_cache is None:
        return None
    try:
        folder = cache_folder(settings.backend.compile_cache, settings.backend.name)
        obstacle = _prepare_folder(folder)
    except OSError as error:  # whatever is wrong there, a run goes on without
        obstacle = f"{error.strerror or error} ({error.filename or settings.backend.compile_cache})"
    except RuntimeError:  # there is neither HOME nor an account of this user
        obstacle = "there is no home directory, and HOME is not set"
    if obstacle is not None:
        return f"Compiled programs are not kept: {obstacle}. backend.compile_cache=FOLDER takes another folder."
    if settings.backend.name == "jax":
        environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        for doing in ("reading", "writing"):  # then JAX compiles, which is all that matters to a run
            warnings.filterwarnings("ignore", message=f"Error {doing} persistent compilation cache entry")
    elif "persistent_cache_directory" not in environment.get("TF_XLA_FLAGS", ""):
        quoted = '"' + re.sub(r"([\"\\])", r"\\\1", str(folder)) + '"'  # a value without quotes ends at a space
        flag = f"--tf_xla_persistent_cache_directory={quoted}"
        environment["TF_XLA_FLAGS"] = f"{environment.get('TF_XLA_FLAGS', '')} {flag}".strip()
    return None


def _prepare_folder(folder: Path) -> str | None:
    """Make it and hold it to its size, or say what keeps it from being used."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
        return f"the disk of {folder} is nearly full"
    _drop_oldest(folder)
    return None


def _drop_oldest(folder: Path) -> None:
    """Delete the least recently used files until the others take at most `LARGEST_CACHE_BYTES`."""
    files = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another run may tidy up too
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                files.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= LARGEST_CACHE_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= size


def cache_folder(chosen: str, backend: str) -> Path:
    """Return the folder for this backend's version on this kind of processor; `chosen` is `auto` or the folder around
    it."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    around = caches / "mpt" / "compiled" if chosen == "auto" else expanded(chosen).absolute()
    version = "unknown"
    for name in PACKAGES[backend]:
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(name)
    # code compiled for another kind of processor, or another set of instructions, may not run here
    processor = platform.machine() + platform.processor() + cpu_description()
    return around / f"{backend}-{version}-{hashlib.sha256(processor.encode()).hexdigest()[:12]}"
