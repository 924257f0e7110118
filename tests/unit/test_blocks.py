"""The code blocks of the pages: YAML loads as a configuration, JSON parses, commands exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml

from cdcd.cli import _parser, main
from cdcd.config import load_config
from cdcd.config.sample import json_schema
from cdcd.demo.options import parse as parse_demo
from cdcd.spark.commands.arguments import PROGRAM
from cdcd.spark.commands.arguments import parse as parse_spark
from tests.support.pages import PAGES, ROOT, Block, blocks
from tests.unit.config.cases import GOOD

BLOCKS = [block for page in PAGES for block in blocks(page)]
YAML = [block for block in BLOCKS if block.language == "yaml" and block.is_of_cdcd]
SHELL = [block for block in BLOCKS if block.language == "sh"]
IN_FILES = re.compile(r"/etc/cdcd/(?:secrets|tls)/[\w./-]+")
RUN = ("cdcd --version", "cdcd config sample", "cdcd config schema", "cdcd config show --config cdcd.yaml")
"""Commands that need no server: the test runs them."""
OF_OTHERS = {
    "cp",
    "curl",
    "docker",
    "helm",
    "kafka-configs",
    "kubectl",
    "pre-commit",
    "psql",
    "spark-submit",
    ".",
    "until",
}
"""Other programs, whose lines are only parsed by a shell."""


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the commands of a block as words, without redirections; each part of a pipeline is a command."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in re.split(r"(?<=\s)\|(?=\s)", line):
            words = shlex.split(part, comments=True)
            if words:
                yield words[: words.index(">")] if ">" in words else words


RUN_BY = {
    "README.md": "tests/spark/test_connection.py",
    "docs/recipes.md": "tests/spark/test_recipes.py",
    "docs/spark/apply-changes.md": "tests/spark/test_apply_changes.py",
    "docs/spark/connect.md": "tests/spark/test_connection.py",
    "docs/spark/decode.md": "tests/spark/test_connection.py",
    "docs/spark/mirror-formats.md": "tests/spark/test_open_formats.py",
    "docs/spark/read.md": "tests/spark/test_connection.py",
    "docs/spark/read-mirror.md": "tests/spark/test_views.py",  # and test_row_history.py
    "docs/spark/testing.md": "tests/spark/test_testing.py",
}
"""The test that runs the Python blocks of a page; only the block for Spark's own Kafka source is not run."""

COMMANDS = [(f"{block}: {shlex.join(words)}", words) for block in SHELL for words in commands(block)]


def of(program: str) -> list[list[str]]:
    return [words for _, words in COMMANDS if words[0] == program]


@pytest.mark.parametrize("block", YAML, ids=str)
def test_a_configuration_is_valid(block: Block, tmp_path: Path) -> None:
    """A block with a name is a complete configuration; any other block is merged into a minimal one."""
    tree = yaml.safe_load(block.text)
    text = block.text if "name" in tree else yaml.safe_dump(merged(yaml.safe_load(GOOD), tree))
    for number, path in enumerate(sorted(set(IN_FILES.findall(text)), key=len, reverse=True)):
        (tmp_path / f"file{number}").write_text("canary")
        text = text.replace(path, str(tmp_path / f"file{number}"))
    (tmp_path / "cdcd.yaml").write_text(text)
    assert load_config(tmp_path / "cdcd.yaml", {}).name == "shop"
    jsonschema.validate(yaml.safe_load(text), json.loads(json_schema()))


def merged(under: object, over: object) -> object:
    if not isinstance(under, dict) or not isinstance(over, dict):
        return over
    return under | {key: merged(under.get(key), value) for key, value in over.items()}


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "json"], ids=str)
def test_json_is_json(block: Block) -> None:
    assert json.loads(block.text)


def test_python_blocks_are_run() -> None:
    assert RUN_BY.keys() == {str(one.page.relative_to(ROOT)) for one in BLOCKS if one.language == "python"}
    for page, test in RUN_BY.items():
        assert Path(page).name in (ROOT / test).read_text(), f"{test} does not read {page}"


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_a_shell_reads_the_block(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True, timeout=60)


@pytest.mark.parametrize("words", of("cdcd"), ids=shlex.join)
def test_a_command_of_cdcd_is_one_that_there_is(words: list[str]) -> None:
    options = _parser().parse_args([word for word in words[1:] if word != "--version"])
    assert options.command or options.config or words[1:] == ["--version"]


@pytest.mark.parametrize("line", RUN)
def test_what_needs_no_server_runs(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line.split() in of("cdcd"), "no page has this command any more"
    (tmp_path / "cdcd.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    try:
        status = main(line.split()[1:])
    except SystemExit as end:
        status = end.code or 0
    assert status == 0
    assert capsys.readouterr().out


def test_what_config_sample_prints_is_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "sample"]) == 0
    (tmp_path / "cdcd.yaml").write_text(capsys.readouterr().out)
    assert load_config(tmp_path / "cdcd.yaml", {}).name == "shop"


@pytest.mark.parametrize("words", of("make"), ids=shlex.join)
def test_a_target_of_make_is_one_that_there_is(words: list[str]) -> None:
    assert re.search(rf"^{words[1]}:.* ## ", (ROOT / "Makefile").read_text(), re.M)
    for arguments in (word.removeprefix("ARGS=") for word in words[2:]):
        assert words[1] == "demo", "arguments of other targets cannot be checked"
        assert parse_demo(shlex.split(arguments))


@pytest.mark.parametrize("words", of("pip"), ids=shlex.join)
def test_what_pip_installs_is_an_extra(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[1] == "install"
    for named in re.findall(r"\[(.*)\]", words[2]):
        assert set(named.split(",")) <= extras.keys()


@pytest.mark.parametrize("words", of("python"), ids=shlex.join)
def test_a_module_has_the_options(words: list[str]) -> None:
    """The module is read, not imported, because Spark may not be installed; its command line is parsed."""
    if shlex.join(words[:3]) == PROGRAM:
        assert parse_spark(words[3:]).command == words[3]
        return
    path = ROOT / words[2].replace(".", "/")
    command = (path / words[3]).with_suffix(".py") if path.is_dir() and len(words) > 3 else None
    if command is not None and command.exists():  # a module is the command of its package
        path = command.with_suffix("")
    source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    assert [word for word in words[3:] if word.startswith("--") and f'"{word}"' not in source] == []


def test_no_other_program_is_named() -> None:
    checked = {"cdcd", "make", "pip", "python"}
    assert {words[0] for _, words in COMMANDS} - {"export", "grep"} <= checked | OF_OTHERS
