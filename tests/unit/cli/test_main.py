"""The `cdcd` command: its output, standard error and exit status."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cdcd.cli import main
from cdcd.cli.output import ascii_escapes
from cdcd.config.sample import sample_yaml
from cdcd.extensions import implementation
from cdcd.version import __version__
from tests.unit.config.cases import GOOD


@pytest.fixture
def prod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("CDCD_"):
            monkeypatch.delenv(name)
    path = tmp_path / "prod.yaml"
    path.write_text(GOOD.replace("cdcd@", "cdcd:hunter2@"))
    return path


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"cdcd {__version__} ({implementation()})\n")


def test_without_a_configuration_the_usage_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["check"], ["init"], ["config", "show"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert "--config" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], ""),
        (["chek", "--config", "x.yaml"], "there is no command 'chek'; did you mean 'check'?"),
        (["--config", "x.yaml", "resnapshoot"], "did you mean 'resnapshot'?"),
        (["drop_slot"], "did you mean 'drop-slot'?"),
        (["qwertz"], "the commands are capture, check, config"),
        ([__file__], f"`cdcd --config {__file__}` runs the daemon"),
    ],
)
def test_no_command_or_an_unknown_one_is_answered_with_the_help_and_what_may_have_been_meant(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "COMMAND" in shown.err
    assert "check" in shown.err
    assert message in shown.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "--jsno"], "unrecognized arguments: --jsno; did you mean --json?"),
        (["resume", "--acept-gap"], "did you mean --accept-gap?"),
        (["init", "--conifg=x.yaml"], "did you mean --config?"),
        (["check", "--zzz"], "unrecognized arguments: --zzz\n"),
    ],
)
def test_an_unknown_option_is_answered_with_what_may_have_been_meant(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert message in capsys.readouterr().err


def test_config_sample_and_schema_print_what_the_models_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "sample"]) == 0
    assert capsys.readouterr().out == sample_yaml()
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["additionalProperties"] is False


@pytest.mark.parametrize("order", ["before", "after"])
def test_config_show_prints_values_origins_and_no_secret(
    order: str, prod: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CDCD_LOG__LEVEL", "debug")
    given = ["--config", str(prod)]
    assert main([*given, "config", "show"] if order == "before" else ["config", "show", *given]) == 0
    shown = capsys.readouterr().out
    assert "hunter2" not in shown
    assert f"  dsn: postgresql://cdcd:***@db.example.com/shop  # {prod}:2\n" in shown
    assert "  level: debug  # CDCD_LOG__LEVEL\n" in shown
    assert "  format: json  # default\n" in shown


def test_config_show_prints_nothing_that_a_terminal_acts_on(
    prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prod.write_text(GOOD + 'admin: {host: "h\\x1b[31m\\u202e\\n"}\n')
    assert main(["config", "show", "--config", str(prod)]) == 0
    assert capsys.readouterr().out.replace("\n", "").isprintable()


def test_the_demo_without_its_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("cdcd.demo") or name.startswith("rich")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert main(["demo"]) == 1
    assert "install cdcd with its extra `demo`" in capsys.readouterr().err


@pytest.mark.parametrize("indent", [None, 2])
def test_json_stays_json_and_is_shown_clean(indent: int | None) -> None:
    value = {"a\x1b[2J": ["b\n\x7f\x9b\u202e\U000e0041", "é 日 𝄞"]}
    shown = ascii_escapes(json.dumps(value, indent=indent, ensure_ascii=False))
    assert json.loads(shown) == value
    assert shown.replace("\n", "").isprintable()
    assert "é 日 𝄞" in shown
