"""Every command and code block of README and of the site is run, page by page, each page in an empty directory with the
files that it gives.

`console` blocks are run, and a `text` block right after one shows what its last command prints, numbers aside. `python`
and `yaml` blocks are files where a name begins the paragraph before them; other `python` blocks are programs, and other
`yaml` blocks parts of recipes. `sh` blocks are what can't be run here: what installs, clusters, GPUs.
"""

import contextlib
import os
import re
import shlex
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import mpt, run_program

from mpt_cli.settings.load import load_settings
from mpt_cli.settings.schema import key_versions, unknown_key_problem
from mpt_cli.telemetry.health_and_verdict import RULES, STOPPED
from mpt_cli.verbs import verb_parser
from mpt_cli.verbs.arguments import LISTED_VERBS

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in FILES}
BLOCK = re.compile(r"((?:^[^\n]+\n)*)\n^```(\w+)\n(.*?)^```$", re.M | re.S)
FILE_NAME = re.compile(r"(?:^|; )`([\w./]+\.(?:py|yaml))`", re.M)
OF_RECIPES_ALONE = {"defaults", "sweep", "hydra"}  # beside the keys of the settings


@dataclass(frozen=True)
class Block:
    """`file` is the name that the paragraph before gives it, `follows` the language of the block right before."""

    language: str
    text: str
    file: str | None
    follows: str | None

    @property
    def commands(self):
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]


def blocks_of(text: str):
    found: list[Block] = []
    end = None
    for match in BLOCK.finditer(text):
        before, language, content = match.groups()
        names = FILE_NAME.search(before) if before.rstrip().endswith(":") else None
        is_next = end is not None and not text[end : match.start(2) - 3].strip()
        found.append(Block(language, content, names and names[1], found[-1].language if is_next else None))
        end = match.end()
    return found


BLOCKS = {page: blocks_of(text) for page, text in PAGES.items()}
COMMANDS = [command for blocks in BLOCKS.values() for block in blocks for command in block.commands]
# what is not run: each is a test of its own below, so that they are listed by name
NOT_RUN = [
    line
    for blocks in BLOCKS.values()
    for block in blocks
    if block.language == "sh"
    for line in block.text.splitlines()
    if re.match(r"(srun .*)?mpt ", line)
]


def test_every_block_was_found():
    for page, text in PAGES.items():
        assert len(BLOCKS[page]) == text.count("\n```") / 2, page
    assert len(COMMANDS) >= 60
    assert {block.language for blocks in BLOCKS.values() for block in blocks} <= {
        "console",
        "text",
        "python",
        "yaml",
        "toml",
        "sh",
    }


def test_the_readme_is_short_and_links_to_pages_that_there_are():
    assert len(PAGES["README.md"].splitlines()) <= 150
    links = re.findall(r"\]\(([\w./-]+)", PAGES["README.md"])
    assert len(links) >= 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def as_the_shell_reads(command: str, cwd: Path):
    """Its words, each sent through `sh` once: quotes, comments, patterns of file names."""
    print_each = f"printf '%s\\0' {command}"
    done = subprocess.run(["sh", "-c", print_each], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def shape(text: str):
    """Its lines without numbers, whose widths vary, and without the units of memory."""
    return [" ".join(re.sub(r"[-+]?\d[\d,.]*(e[-+]?\d+)?( [MG]iB)?", "#", line).split()) for line in text.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [page for page, blocks in BLOCKS.items() if any(block.language in ("console", "python") for block in blocks)],
)
def test_what_a_page_shows_runs(page, tmp_path):
    for block in BLOCKS[page]:
        if block.file is not None:
            path = tmp_path / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
    said = ""
    for number, block in enumerate(BLOCKS[page]):
        for command in block.commands:
            name, *words = as_the_shell_reads(command, tmp_path)
            assert name == "mpt", command
            done = mpt(*words, cwd=tmp_path)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            assert "\x1b" not in done.stdout, command
            said = done.stdout + done.stderr
        if block.language == "python" and block.file is None:
            program = tmp_path / f"block_{number}.py"
            program.write_text(block.text)
            done = run_program(str(program), backend="tensorflow", cwd=tmp_path, timeout=300)
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        if block.language == "text" and block.follows == "console":
            assert not set(shape(block.text)) - {"", *shape(said)}, said


@pytest.mark.long
def test_what_cannot_be_run_here_is_at_least_well_formed(tmp_path, monkeypatch):
    """A sweep's values are left out; a file that it names is one of the pages, or stands where the tests run."""
    monkeypatch.delenv("KERAS_BACKEND")
    for command in NOT_RUN:
        with contextlib.chdir(ROOT):
            for block in (block for blocks in BLOCKS.values() for block in blocks):
                if block.file is not None and f"={block.file}" in command:
                    (tmp_path / block.file).write_text(block.text)
                    os.chdir(tmp_path)
            words = shlex.split(command[command.index("mpt ") :].partition(" -- ")[0], comments=True)
            assert words[1] in LISTED_VERBS
            given = verb_parser(words[1]).parse_intermixed_args(words[2:])
            overrides = [
                word
                for word in getattr(given, "overrides", ())
                if not re.search(r"^[^{]*[,(]|^launcher\.|^sweep_dir=", word)
            ]
            if overrides:
                assert load_settings(overrides).recipe, command


def leaves(tree: Any, path: str = ""):
    """Each value of a mapping with its path."""
    for name, value in tree.items():
        inner = f"{path}.{name}" if path else str(name)
        yield inner, value
        if isinstance(value, dict) and unknown_key_problem(inner, value) is None:
            yield from leaves(value, inner)


def test_parts_of_recipes_have_keys_that_there_are():
    for block in (block for blocks in BLOCKS.values() for block in blocks):
        if block.language == "toml":
            tomllib.loads(block.text)
        if block.language != "yaml" or block.file is not None:
            continue
        tree = yaml.safe_load(block.text)
        known = {name: value for name, value in tree.items() if name not in OF_RECIPES_ALONE}
        assert [str(problem) for path, value in leaves(known) if (problem := unknown_key_problem(path, value))] == []


def test_the_guide_says_of_each_verdict_what_to_try():
    rows = re.findall(r"^\| `([a-z -]+)` \| (.+) \| (.+) \|$", PAGES["docs/guides/overflow.md"], re.M)
    assert {verdict for verdict, *_ in rows} == {STOPPED, *(rule.verdict for rule in RULES)}


@pytest.mark.long
def test_the_reference_is_whole_and_a_public_name_without_words_ends_the_build(hook):
    keys = hook.keys()
    assert [
        key.path
        for key in key_versions()
        if f"| `{key.path}` |" not in keys and not key.path.endswith((".name", ".mode"))
    ] == []
    assert all(f"\n## mpt {verb}\n" in f"\n{hook.verbs()}" for verb in LISTED_VERBS)
    assert "| 143 | terminated or killed; mpt run: or that of the script |" in hook.exit_codes()
    assert "| `skipped_steps` | `int` |" in hook.record("summary.json")
    assert "::: mpt_cli.python_api.fit\n" in hook.python("mpt_cli")
    hook.package_tree()["python_api"].members["fit"].docstring = None
    with pytest.raises(Exception, match=r"public names without a docstring: mpt_cli\.python_api\.fit$"):
        hook.python("mpt_cli")
