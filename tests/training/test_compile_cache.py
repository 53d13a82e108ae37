"""Programs kept on disk: used by the next run, never in the way of one."""

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from backends import only_on
from preloaded import ENVIRONMENT, mpt

from mpt_cli.engine import compile_cache
from mpt_cli.engine.compile_cache import cache_folder, drop_oldest, entries_of, use_compile_cache
from mpt_cli.settings import load_settings

KILLED = 2**22 + 1  # beyond the largest process number of Linux


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
    expected = f"--tf_xla_auto_jit=0 --tf_xla_persistent_cache_directory={cache_folder(str(tmp_path), 'tensorflow')}"
    assert tensorflow == {"TF_XLA_FLAGS": expected}


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


def test_two_runs_that_tidy_up_at_once_do_not_mind(tmp_path: Path, folder: Path, monkeypatch) -> None:
    marker = folder / f"{compile_cache._marker_prefix()}{KILLED}"
    marker.touch()
    monkeypatch.setattr(compile_cache, "_is_running", lambda pid: marker.unlink())  # by the other one, just now
    assert use_compile_cache(settings(str(tmp_path)), {}) is None


def test_a_folder_in_which_others_may_put_programs_is_not_used(tmp_path: Path, folder: Path) -> None:
    folder.chmod(0o777)
    variables: dict[str, str] = {}
    assert use_compile_cache(settings(str(tmp_path)), variables) == (
        f"Compiled programs are not kept: everybody may write into {folder} (chmod o-w closes it). "
        "backend.compile_cache=FOLDER takes another folder."
    )
    assert variables == {}
    folder.chmod(0o700)
    assert use_compile_cache(settings(str(tmp_path)), variables) is None and variables != {}


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    said = use_compile_cache(settings(str(tmp_path)), {})
    assert said is not None and f"{folder} belongs to another user" in said


def test_a_place_that_is_a_file_is_said_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = use_compile_cache(settings(str(tmp_path / "file")), {})
    assert said is not None and "Not a directory" in said


def test_a_user_without_a_home_is_said_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """HOME is not set, and no account has the number of this user, as in a container."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert use_compile_cache(settings("auto"), {}) == (
        "Compiled programs are not kept: there is no home directory, and HOME is not set. backend.compile_cache=FOLDER "
        "takes another folder."
    )


def test_what_others_left_in_the_folder_is_no_error(tmp_path: Path, folder: Path) -> None:
    prefix = compile_cache._marker_prefix()
    for name in (f"{prefix}backup~", f"{prefix}-1"):
        (folder / name).write_text("")
    (folder / "a folder").mkdir()
    number_of_no_process = folder / f"{prefix}{'9' * 40}"
    assert use_compile_cache(settings(str(tmp_path)), {}) is None
    assert (folder / f"{prefix}backup~").exists() and (folder / "a folder").is_dir()
    number_of_no_process.write_text("")
    assert use_compile_cache(settings(str(tmp_path)), {}) is None and not number_of_no_process.exists()
    (folder / "program").write_bytes(b"1")
    drop_oldest(folder, entries_of(folder), 0)
    assert (folder / "a folder").is_dir() and not (folder / "program").exists()


def test_what_a_killed_run_may_have_left_half_written_goes(tmp_path: Path, folder: Path) -> None:
    for name, age in (("before", 10), (f"{compile_cache._marker_prefix()}{KILLED}", 5), ("after", 3)):
        (folder / name).write_text(name)
        now = (folder / name).stat().st_mtime
        os.utime(folder / name, (now - age, now - age))
    use_compile_cache(settings(str(tmp_path)), {})
    kept = {path.name for path in folder.iterdir()}
    assert kept == {"before", f"{compile_cache._marker_prefix()}{os.getpid()}"}


def test_the_files_not_used_for_longest_go_first(folder: Path) -> None:
    for age, name in enumerate(("new", "old", "oldest")):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1000 - age, 1000 - age))
    drop_oldest(folder, entries_of(folder), 250)
    assert {path.name for path in folder.iterdir()} == {"new", "old"}


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """One bit; size and time of writing stay."""
    times, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def anothers(path: Path) -> None:
    """Whole, but of another program, or of a version that keeps others under this name."""
    other = next(each for each in sorted(path.parent.glob(f"*{path.suffix}")) if each != path)
    path.write_bytes(other.read_bytes() + b"x")


def in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("")


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGES = {
    "cut off": cut_off, "empty": lambda path: path.write_bytes(b""), "bit": flip, "another's": anothers,
    "garbage": lambda path: path.write_bytes(random.Random(0).randbytes(5000)), "a folder": in_its_place,
    "a link": a_link, "everybody's": lambda path: path.chmod(0o666),
}  # fmt: skip


def keep(folder: Path, *names: str) -> list[Path]:
    """Programs that a run has left."""
    paths = [folder / name for name in names]
    for path in paths:
        path.write_bytes(path.name.encode() * 100)
    compile_cache._note_new(folder)
    return paths


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_program_that_is_not_as_its_run_left_it_goes_and_no_other(damage, tmp_path: Path, folder: Path) -> None:
    one, other = keep(folder, "a.pb", "b.pb")
    damage(one)
    assert use_compile_cache(settings(str(tmp_path)), {}) is None
    assert not os.path.lexists(one) and other.read_bytes() == b"b.pb" * 100
    assert use_compile_cache(settings(str(tmp_path)), {}) is None and other.exists()


def test_a_program_of_another_user_goes(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("this user can give no file away")
    one, other = keep(folder, "a-cache", "b-cache")
    os.chown(one, 12345, -1)
    assert use_compile_cache(settings(str(tmp_path)), {}) is None
    assert not one.exists() and other.exists()


def test_a_program_that_no_run_has_noted_goes_unless_one_is_at_work(tmp_path: Path, folder: Path) -> None:
    old, new = folder / "old-cache", folder / "new-cache"
    old.write_bytes(b"1")
    os.utime(old, (1000, 1000))
    marker = folder / f"{compile_cache._marker_prefix()}{os.getppid()}"  # which is running
    marker.touch()
    os.utime(marker, (2000, 2000))
    new.write_bytes(b"1")
    assert use_compile_cache(settings(str(tmp_path)), {}) is None
    assert not old.exists() and new.exists()
    marker.rename(folder / f"{compile_cache._marker_prefix()}{KILLED}")
    os.utime(folder / f"{compile_cache._marker_prefix()}{KILLED}")
    compile_cache._markers.clear()
    assert use_compile_cache(settings(str(tmp_path)), {}) is None and not new.exists()


def test_what_an_earlier_process_of_the_same_number_left_half_written_goes(tmp_path: Path, folder: Path) -> None:
    """In a container each run may be process 1."""
    (folder / f"{compile_cache._marker_prefix()}{os.getpid()}").touch()
    (folder / "half.pb").write_bytes(b"1")
    assert use_compile_cache(settings(str(tmp_path)), {}) is None and not (folder / "half.pb").exists()


def test_what_a_process_itself_has_written_stays_when_it_asks_again(tmp_path: Path, folder: Path) -> None:
    assert use_compile_cache(settings(str(tmp_path)), {}) is None
    (folder / "new.pb").write_bytes(b"1")
    for _ in range(3):
        time.sleep(0.02)
        assert use_compile_cache(settings(str(tmp_path)), {}) is None and (folder / "new.pb").exists()


def test_a_program_that_nothing_wrote_since_is_not_read_again(tmp_path: Path, folder: Path, monkeypatch) -> None:
    (one,) = keep(folder, "a.pb")
    restored = tmp_path / "restored"
    monkeypatch.setattr(compile_cache.hashlib, "file_digest", None)
    assert use_compile_cache(settings(str(tmp_path)), {}) is None and one.exists()
    monkeypatch.undo()
    kept = shutil.ignore_patterns("running-*")
    shutil.copytree(folder, restored / folder.name, ignore=kept, copy_function=shutil.copyfile)  # as a CI restores it
    assert use_compile_cache(settings(str(restored)), {}) is None and (restored / folder.name / "a.pb").exists()
    monkeypatch.setattr(compile_cache.hashlib, "file_digest", None)  # once it was read
    assert use_compile_cache(settings(str(restored)), {}) is None and (restored / folder.name / "a.pb").exists()


def test_checksums_that_are_damaged_cost_the_programs_and_no_run(tmp_path: Path, folder: Path) -> None:
    one, other = keep(folder, "a.pb", "b.pb")
    lines = (folder / compile_cache.CHECKSUMS).read_text().splitlines()
    (folder / compile_cache.CHECKSUMS).write_text(f"x\n{lines[0].replace(' ', ' x', 1)}\n\udcff\n{lines[1]}\n", "utf-8",
                                                  "surrogateescape")  # fmt: skip
    assert use_compile_cache(settings(str(tmp_path)), {}) is None
    assert [path.exists() for path in (one, other)] == [name in lines[1] for name in ("a.pb", "b.pb")]
    (folder / compile_cache.CHECKSUMS).unlink()
    os.mkfifo(folder / compile_cache.CHECKSUMS)
    assert use_compile_cache(settings(str(tmp_path)), {}) is None and not one.exists() and not other.exists()


def without_a_cache(environment: Mapping[str, str]) -> dict[str, str]:
    """A process of pytest, or the one that started it, may have chosen one."""
    chosen = ("TF_XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
    return {name: value for name, value in environment.items() if name not in chosen}


def programs(cache: Path) -> dict[Path, int]:
    found = [*cache.rglob("*-cache"), *cache.rglob("*.pb")]
    return {path: path.stat().st_mtime_ns for path in found}


@pytest.mark.long
@pytest.mark.slow
@only_on("tensorflow")  # a matter of its own processes
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_second_run_takes_the_programs_of_the_first_and_a_third_no_damaged_one(backend: str, tmp_path: Path) -> None:
    words = ["conf=digits_mlp", f"backend={backend}", "trainer.max_steps=5", "trainer.jit_compile=true",
             "backend.compile_cache=cache"]
    command = [sys.executable, "-m", "mpt_cli", "train", *words, "logger.console=quiet"]
    quiet = without_a_cache(os.environ)
    quiet["TF_CPP_MIN_LOG_LEVEL"] = "3"  # as mpt sets it where the user doesn't
    written = []
    for name in ("first", "second", "third"):
        spoilt = damage_each(written[1]) if name == "third" else {}
        done = subprocess.run([*command, f"run_dir={name}"], cwd=tmp_path, env=quiet, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        written.append(programs(tmp_path / "cache"))
    assert written[0] == written[1] and len(written[0]) > 2
    assert not list((tmp_path / "cache").rglob("running-*"))
    assert losses(tmp_path / "first") == losses(tmp_path / "second") == losses(tmp_path / "third")
    assert set(written[2]) == set(written[0]) and all(path.read_bytes() != spoilt[path] for path in written[2])


def damage_each(paths: Iterable[Path]) -> dict[Path, bytes]:
    """Each in another way; what they hold then."""
    kinds = itertools.cycle(DAMAGES[name] for name in ("cut off", "garbage", "empty", "another's", "bit"))
    for path, damage in zip(sorted(paths), kinds, strict=False):
        damage(path)
    return {path: path.read_bytes() for path in paths}


def losses(run: Path) -> list[object]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
@only_on("tensorflow")  # a matter of its own processes
def test_a_folder_of_any_name_keeps_programs(tmp_path: Path) -> None:
    """TensorFlow's flags end at a space."""
    cache = tmp_path / 'my "cache\\ of it'
    done = mpt("train", "conf=digits_mlp", "trainer.max_steps=5", "trainer.jit_compile=true", "run_dir=r",
               "logger.console=quiet", cwd=tmp_path, fresh=True,
               env={**without_a_cache(ENVIRONMENT), "XDG_CACHE_HOME": str(cache)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(programs(cache)) > 2
