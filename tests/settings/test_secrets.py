"""Values of secrets are neither written nor printed; whoever has the variable can run the record again."""

from dataclasses import replace

import pytest
from command import ENVIRONMENT, mpt

from mpt_cli import redaction
from mpt_cli.cli import main
from mpt_cli.errors import ConfigError, printable
from mpt_cli.files import strict_json
from mpt_cli.settings.load import load_settings, resolved_yaml

PARTS = """
import keras

def net(input_shape, num_classes, api_key):
    assert api_key == "sk-12345"
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(num_classes)])
"""


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(redaction, "known", redaction.KnownSecrets())


@pytest.mark.slow
def test_a_secret_of_the_environment_is_put_back_as_where_it_comes_from(monkeypatch, tmp_path):
    value = "hunter2: 'x' \"${y}\" \\ ä #"
    monkeypatch.setenv("DB_PASSWORD", value)
    settings = load_settings(["conf=digits_mlp", "description=before ${oc.env:DB_PASSWORD} after"])
    assert settings.description == f"before {value} after"
    text = resolved_yaml(settings)
    assert "description: before ${oc.env:DB_PASSWORD} after\n" in text and "hunter2" not in text
    (tmp_path / "again.yaml").write_text(text)
    assert load_settings([f"conf={tmp_path / 'again.yaml'}"]) == settings
    for shown in (printable(f"it is {value}"), strict_json({"it is": [value]})):
        assert "hunter2" not in shown and "it is" in shown and "${oc.env:DB_PASSWORD}" in shown


def test_what_an_error_of_the_users_code_quotes_is_masked_too(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "a value that is long")
    said = "postgres://u:pw@h/db and https://ghtoken99@h hold a value that is long"
    assert printable(said) == "postgres://u:<redacted>@h/db and https://<redacted>@h hold ${oc.env:MY_API_KEY}"


def test_which_variables_are_secrets(monkeypatch):
    names = [
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "PGPASSWORD",
        "API_KEY",
        "DB_PASS",
        "SMTP_PASS",
        "SENTRY_DSN",
        "HF_TOKEN_READ",
        "BASIC_AUTH",
        "MONKEY",
        "TOKENIZER",
        "PASSES",
        "COMPASS",
        "OLDPWD",
    ]
    for name in names:
        monkeypatch.setenv(name, f"<<{name.lower()}>>")
    description = " ".join(f"${{oc.env:{name}}}" for name in names)
    text = resolved_yaml(load_settings(["conf=digits_mlp", f"description='{description}'"]))
    assert [name for name in names if f"<<{name.lower()}>>" in text] == names[9:]


def test_which_keys_are_secrets(capsys):
    keys = ["pwd", "hf_token", "bearer_token", "authorization", "dbPass", "APIKEY"]
    words = [f"vars.{key}=abc.def-{number}" for number, key in enumerate(keys)]
    assert main(["check", "--show", "conf=digits_mlp", *words, "--json"]) == 0
    captured = capsys.readouterr()
    assert "abc.def-" not in captured.out + captured.err
    assert [key for key in keys if f'"{key}": "<redacted>"' not in captured.out] == []


def test_what_only_looks_like_one_stays():
    words = ["vars.pad_token='<pad>'", "vars.low_pass=butter", "vars.hf_token=null", "vars.a='http://h:80/a@b?n=2'"]
    text = resolved_yaml(load_settings(["conf=digits_mlp", *words]))
    assert redaction.REDACTED not in text and "low_pass: butter" in text


@pytest.mark.slow
def test_a_text_under_the_name_of_a_secret_is_left_out_and_has_to_be_given_again(tmp_path):
    words = [
        "conf=digits_mlp",
        "model=builder",
        "model.builder=parts.py:net",
        "model.kwargs={api_key: sk-12345, unk_token: abcd}",
    ]
    text = resolved_yaml(load_settings(words))
    assert "api_key: <redacted>\n" in text and "unk_token: abcd\n" in text
    (tmp_path / "again.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings([f"conf={tmp_path / 'again.yaml'}"])
    assert str(caught.value) == (
        "model.kwargs.api_key: was left out of the record of the run, because it is a secret. Give it again: model.kwargs.api_key=…, or "
        "model.kwargs.api_key='${oc.env:VARIABLE}', which is recorded in this form."
    )
    again = load_settings([f"conf={tmp_path / 'again.yaml'}", "model.kwargs.api_key=sk-12345"])
    assert replace(again, recipe="digits_mlp") == load_settings(words)


@pytest.mark.slow
def test_what_a_recipe_reads_is_said_and_an_untrusted_one_reads_nothing(monkeypatch, capsys):
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    monkeypatch.setenv("PLACE", "elsewhere")
    words = ["conf=digits_mlp", "description=${oc.env:DB_PASSWORD} ${oc.env:PLACE}"]
    assert main(["check", "--show", *words]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# this recipe reads environment variables: DB_PASSWORD, PLACE\nrecipe: digits_mlp\n")
    assert "description: ${oc.env:DB_PASSWORD} elsewhere\n" in shown
    assert main(["check", "--show", "--untrusted", *words]) == 0
    assert "description: ${oc.env:DB_PASSWORD} ${oc.env:PLACE}\n" in capsys.readouterr().out
    assert main(["check", *words]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "reads environment variables: DB_PASSWORD, PLACE"
    assert main(["check", "--untrusted", "--build", *words]) == 2
    assert "it can't be combined with --untrusted" in capsys.readouterr().err


def test_a_password_of_the_environment_in_an_address_is_read_there_again(monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    words = [
        "conf=digits_mlp",
        "model=builder",
        "model.builder=parts.py:net",
        "model.kwargs={url: 'https://me:${oc.env:DB_PASSWORD}@host/x'}",
    ]
    assert "url: https://me:${oc.env:DB_PASSWORD}@host/x\n" in resolved_yaml(load_settings(words))


@pytest.mark.slow
def test_what_lists_watches_and_reports_reads_nothing_of_the_environment(here, monkeypatch, capsys):
    """What a stranger wrote into a recipe, or into the configuration of a run."""
    monkeypatch.setenv("PLACE", "elsewhere")  # no secret, and not redacted
    taken = "description: in ${oc.env:PLACE}\nmodel: {builder: 'no_such_module:f'}\n"
    for name in ("recipes/theirs.yaml", "run/config.yaml"):
        (here / name).parent.mkdir()
        (here / name).write_text(taken)
    assert main(["list"]) == 0 and "in ${oc.env:PLACE}" in (listed := capsys.readouterr().out)
    assert "elsewhere" not in listed
    assert (main(["watch", "run"]), main(["report", "run"])) == (143, 0)
    captured = capsys.readouterr()
    assert "elsewhere" not in captured.out + captured.err + (here / "run" / "report.html").read_text()


@pytest.mark.slow
def test_nothing_that_a_run_writes_or_prints_holds_a_secret(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    words = [
        "conf=digits_mlp",
        "model=builder",
        "model.builder=parts.py:net",
        "model.kwargs={api_key: sk-12345}",
        "description=${oc.env:DB_PASSWORD}",
        "trainer.max_steps=3",
        "run_dir=r",
        "vars.q=32",
    ]
    done = mpt("train", *words, cwd=tmp_path, env={**ENVIRONMENT, "DB_PASSWORD": "hunter2"})
    assert done.returncode == 0, done.stderr
    assert "${oc.env:DB_PASSWORD}" in done.stdout and "nothing uses vars.q" in done.stdout
    printed = done.stdout + done.stderr
    written = [path for path in (tmp_path / "r").rglob("*") if path.is_file()]
    held = [str(path) for path in written if any(text in path.read_bytes() for text in (b"hunter2", b"sk-12345"))]
    assert held == [] and "hunter2" not in printed and "sk-12345" not in printed
    assert {"config.yaml", "environment.json", "console.log"} <= {path.name for path in written}
