"""What JAX compiles is kept for the next run."""

import os

from command import start_mpt


def test_a_run_fills_the_folder_of_this_processor_and_drops_what_is_old(tmp_path):
    folder = tmp_path / "mpt" / "compiled"
    words = ["conf=digits_mlp", "backend=jax", "model.hidden_units=[4]", "trainer.max_steps=1", "run_dir="]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)

    def train(name: str):
        process = start_mpt("train", *words[:-1], f"run_dir={name}", cwd=tmp_path, env=environment)
        assert process.communicate()[1] == "" and process.returncode == 0
        (cache,) = folder.iterdir()
        return cache

    cache = train("first")
    kept = {path.name for path in cache.iterdir()}
    assert kept
    (old := cache / "old").touch()
    os.utime(old, (0, 0))
    assert {path.name for path in train("second").iterdir()} == kept
