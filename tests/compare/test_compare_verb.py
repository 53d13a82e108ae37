"""`mpt compare` as a command; the guide to policies runs a real one."""

from mpt_cli.cli import main


def test_bad_usage_is_a_sentence_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, code, message in (
        (["conf=digits_mlp", "-j", "0"], 2, "mpt compare: --jobs: must be >= 1. Received: 0."),
        (["conf=digits_mlp", "--tolerance", "nan"], 2, "mpt compare: --tolerance: must be >= 0."),
        (["conf=digits_mlp", "--timeout", "0"], 2, "mpt compare: --timeout: must be > 0 seconds."),
        (["--resume", "x", "-j", "2"], 2, "mpt compare: --resume: must be given without overrides, -j, --seeds"),
        ([], 2, "mpt compare: conf: must be given"),
        (["--resume", "nowhere"], 3, "nowhere is not a compare directory: it does not exist"),
    ):
        assert main(["compare", *words]) == code
        assert message in capsys.readouterr().err and list(tmp_path.iterdir()) == []
