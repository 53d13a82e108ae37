"""What the shell is offered, and the bash script in a real bash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpt_cli.settings.loss_scale import SCALE_MODES
from mpt_cli.settings.search_path import recipe_paths
from mpt_cli.verbs import LISTED_VERBS
from mpt_cli.verbs.completion import complete_line


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("mpt tr", ["train"]),
        ("mpt ", sorted(LISTED_VERBS)),
        ("mpt train conf=digits_c", ["conf=digits_cnn"]),
        ("mpt train conf=digits_cnn pol", ["policy.", "policy="]),
        ("mpt train policy=mixed_", ["policy=mixed_bfloat16", "policy=mixed_float16"]),
        ("mpt train policy.name=mixed_b", ["policy.name=mixed_bfloat16"]),
        ("mpt show loss_scale.mode=", [f"loss_scale.mode={mode}" for mode in SCALE_MODES]),
        ("mpt sweep conf=digits_mlp loss_scale.mode=f", ["loss_scale.mode=fixed"]),
        ("mpt sweep --ti", ["--timeout"]),
        ("mpt show loss_scale.gr", ["loss_scale.growth_factor=", "loss_scale.growth_steps="]),
        ("mpt check trainer.shuffle=", ["trainer.shuffle=false", "trainer.shuffle=true"]),
        ("mpt check trainer.jit_compile=", [f"trainer.jit_compile={value}" for value in ("auto", "false", "true")]),
        ("mpt train model=cnn model.", ["model.dropout=", "model.filters=", "model.hidden_units=", "model.name="]),
        ("mpt train optimizer.schedule.b", ["optimizer.schedule.boundaries="]),
        ("mpt train model.kw", ["model.kwargs."]),
        ("mpt list o", ["optimizers"]),
        ("mpt completion ", ["bash", "fish", "zsh"]),
        ("mpt train --q", ["--quiet"]),
        ("mpt diagnose conf=digits_mlp policy=mixed_f", ["policy=mixed_float16"]),
        ("mpt diagnose --at", ["--at-steps"]),
        ("mpt nonsense x", []),
        ("mpt train nothing=", []),
    ],
)
def test_offers(line, offered) -> None:
    assert complete_line(line) == offered


def test_conf_is_offered_once() -> None:
    assert "conf=" in complete_line("mpt train ")
    assert "conf=" not in complete_line("mpt train conf=digits_cnn ")


def test_copy_offers_recipes() -> None:
    assert complete_line("mpt copy ") == sorted(recipe_paths())


def test_paths_are_offered_where_a_path_is_meant(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").touch()
    Path("mint.txt").touch()
    Path("minutes").mkdir()
    assert complete_line("mpt train conf=mi") == ["conf=mine.yaml", "conf=minutes/"]
    names = ("mine.yaml", "mint.txt", "minutes/")
    assert complete_line("mpt train data.path=min") == [f"data.path={name}" for name in names]
    assert complete_line(f"mpt evaluate {tmp_path}/minu") == [f"{tmp_path}/minutes/"]


def _bash(line: str, cwd: Path) -> list[str]:
    """COMPREPLY after the line has been typed: bash's own variables, the script's own function."""
    program = f"""
    mpt() {{ {sys.executable} -m mpt_cli "$@"; }}
    source <(mpt completion bash)
    COMP_WORDBREAKS=$' \\t\\n"'"'"'><=;|&(:'
    COMP_WORDS=(mpt); COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}
    _mpt 2>/dev/null
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], cwd=cwd, capture_output=True, text=True, timeout=60, env=os.environ)
    return done.stdout.split()


def test_bash_gets_what_follows_the_equals_sign(tmp_path) -> None:
    assert _bash("mpt train policy=mixed_", tmp_path) == ["mixed_bfloat16", "mixed_float16"]
    assert _bash("mpt train loss_scale.mode=", tmp_path) == list(SCALE_MODES)


def test_bash_completes_verbs_and_recipes(tmp_path) -> None:
    assert _bash("mpt expo", tmp_path) == ["export"]
    assert _bash("mpt train conf=digits_c", tmp_path) == ["digits_cnn"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell, capsys) -> None:
    from mpt_cli.cli import main

    assert main(["completion", shell]) == 0
    assert "__complete" in capsys.readouterr().out
