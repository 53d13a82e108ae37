"""What the shell is offered, in this process, and what the printed scripts add to argcomplete's."""

import io
from pathlib import Path

import pytest
from argcomplete.finders import CompletionFinder

from mpt_cli.cli import main
from mpt_cli.jobs.launchers import LAUNCHERS
from mpt_cli.settings.model_data_optimizer_keys import SCALE_MODES
from mpt_cli.verbs.arguments import LISTED_VERBS
from mpt_cli.verbs.completion import complete


def complete_line(line: str):
    """Candidates for the last word of the line, as argcomplete hands them to a shell that splits words at spaces."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "MPT_CONFIG_DIR": "",
        }.items():
            patch.setenv(name, value)
        patch.setattr(CompletionFinder, "_init_debug_stream", lambda self: None)  # it takes descriptor 9
        out = io.StringIO()
        complete(out, exit_method=lambda code: None)
    return out.getvalue().split("\n") if out.getvalue() else []


OFFERED = {
    "mpt tr": ["train"],
    "mpt ": sorted(LISTED_VERBS),
    "mpt train conf=digits_c": ["conf=digits_cnn"],
    "mpt train conf=digits_cnn pol": ["policy.", "policy="],
    "mpt train policy=mixed_": ["policy=mixed_bfloat16", "policy=mixed_float16"],
    "mpt check loss_scale.mode=": [f"loss_scale.mode={mode}" for mode in SCALE_MODES],
    "mpt check loss_scale.gr": ["loss_scale.growth_factor=", "loss_scale.growth_steps="],
    "mpt check trainer.jit_compile=": [f"trainer.jit_compile={value}" for value in ("auto", "false", "true")],
    "mpt train model.kw": ["model.kwargs."],
    "mpt list o": ["optimizers"],
    "mpt list keys op": ["optimizer"],
    "mpt doctor --completion ": ["bash", "fish", "zsh"],
    "mpt train --q": ["--quiet"],
    "mpt sweep --launcher ": sorted(LAUNCHERS),
    "mpt sweep -j ": [],
    "mpt sweep conf=digits_mlp --quiet policy=mixed_f": ["policy=mixed_float16"],
    "mpt run policy=mixed_f": ["policy=mixed_float16"],
    "mpt reproduce digits_m": ["digits_mlp"],
    "mpt copy digits_m": ["digits_mlp"],
    "mpt nonsense x": [],
    "mpt __k": [],
    "mpt train nothing=": [],
}


def test_offers():
    for line, offered in OFFERED.items():
        assert complete_line(line) == offered, line


def test_paths_are_offered_where_a_path_is_meant(here):
    Path("mine.yaml").touch()
    Path("mint.txt").touch()
    Path("minutes").mkdir()
    assert complete_line("mpt train conf=mine") == ["conf=mine.yaml"]
    assert complete_line(f"mpt evaluate {here}/minu") == [f"{here}/minutes/"]
    assert complete_line("mpt report --out min") == ["mine.yaml", "mint.txt", "minutes/"]
    assert complete_line("mpt diagnose minu") == complete_line("mpt sweep --resume minu") == ["minutes/"]


def test_a_shell_puts_no_space_behind_a_section_a_key_or_a_folder(capsys):
    for shell in ("bash", "zsh", "fish"):
        assert main(["doctor", "--completion", shell]) == 0
        assert "mpt" in (script := capsys.readouterr().out) and ("[=/:.]" in script or shell == "fish")


def test_what_the_project_has_is_offered(here):
    for name in ("conf/loss_scale/mine.yaml", "far/loss_scale/theirs.yaml", "recipes/first.yaml"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("mode: fixed\n")
    assert complete_line("mpt train loss_scale=mi") == ["loss_scale=mine"]
    assert complete_line("mpt train conf=fir") == ["conf=first"]
    assert complete_line("mpt train --config-dir far loss_scale=th") == ["loss_scale=theirs"]
