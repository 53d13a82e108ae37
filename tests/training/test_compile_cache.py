"""Programs kept on disk: used by the next run, never in the way of one."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from backends import only_on
from command import mpt

from mpt_cli.engine import compile_cache
from mpt_cli.engine.compile_cache import cache_folder, use_compile_cache
from mpt_cli.settings.load import load_settings


def settings(place: str | None, backend: str = "jax"):
    loaded = load_settings(["conf=digits_mlp", f"backend={backend}"])
    return replace(loaded, backend=replace(loaded.backend, compile_cache=place))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = cache_folder(str(tmp_path), "jax")
    made.mkdir()
    return made


@pytest.mark.slow
def test_each_framework_is_told_in_its_own_words(tmp_path: Path) -> None:
    jax, tensorflow = {}, {"TF_XLA_FLAGS": "--tf_xla_auto_jit=0"}
    use_compile_cache(settings(str(tmp_path)), jax)
    use_compile_cache(settings(str(tmp_path), "tensorflow"), tensorflow)
    assert jax["JAX_COMPILATION_CACHE_DIR"] == str(cache_folder(str(tmp_path), "jax"))
    place = cache_folder(str(tmp_path), "tensorflow")
    assert place.stat().st_mode & 0o777 == 0o700
    assert tensorflow == {"TF_XLA_FLAGS": f'--tf_xla_auto_jit=0 --tf_xla_persistent_cache_directory="{place}"'}


def test_null_and_the_users_own_choice_leave_the_variables_alone(tmp_path: Path) -> None:
    jax, own = {}, {"JAX_COMPILATION_CACHE_DIR": "mine"}
    use_compile_cache(settings(None), jax)
    use_compile_cache(settings(str(tmp_path)), own)
    assert jax == {} and own["JAX_COMPILATION_CACHE_DIR"] == "mine"


def test_a_nearly_full_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "LEAST_FREE_BYTES", 2**80)
    variables: dict[str, str] = {}
    said = use_compile_cache(settings(str(tmp_path)), variables)
    assert variables == {} and said is not None and "nearly full" in said


def test_the_files_not_used_for_longest_go_first(tmp_path: Path, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(compile_cache, "LARGEST_CACHE_BYTES", 250)
    (folder / "a folder").mkdir()
    for age, name in enumerate(("new", "old", "oldest")):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1000 - age, 1000 - age))
    assert use_compile_cache(settings(str(tmp_path)), {}) is None
    assert {path.name for path in folder.iterdir()} == {"a folder", "new", "old"}


def programs(cache: Path) -> dict[Path, int]:
    found = [*cache.rglob("*-cache"), *cache.rglob("*.pb")]
    return {path: path.stat().st_mtime_ns for path in found}


@pytest.mark.long
@only_on("tensorflow")  # a matter of its own processes
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_second_run_takes_the_programs_of_the_first(backend: str, tmp_path: Path) -> None:
    words = [
        "conf=digits_mlp",
        f"backend={backend}",
        "trainer.max_steps=5",
        "trainer.jit_compile=true",
        "backend.compile_cache=cache",
    ]
    chosen = ("TF_XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")  # by a process of pytest, or the one that started it
    quiet = {name: value for name, value in os.environ.items() if name not in chosen}
    quiet["TF_CPP_MIN_LOG_LEVEL"] = "3"  # as mpt sets it where the user doesn't
    written: dict[Path, int] = {}
    for name in ("first", "second", "third"):
        if name == "third" and backend == "jax":
            for path in written:
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])  # as a killed run may leave it
        done = mpt("train", *words, "logger.console=quiet", f"run_dir={name}", cwd=tmp_path, env=quiet, fresh=True)
        assert (done.returncode, done.stderr) == (0, "")
        if name != "third":
            found = programs(tmp_path / "cache")
            assert len(found) > 2 and written in ({}, found)
            written = found
    assert losses(tmp_path / "first") == losses(tmp_path / "second") == losses(tmp_path / "third")


def losses(run: Path) -> list[object]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
