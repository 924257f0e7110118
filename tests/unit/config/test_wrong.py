"""Each mistake gives one line: the key's path, the problem, its origin, and the correction."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcd.config import load_config
from cdcd.errors import EXIT_CONFIG, ConfigError
from tests.unit.config.cases import CASES, GOOD, Wrong


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mistake_gives_its_lines_and_status_78(case: Wrong, folder: Path) -> None:
    (folder / "prod.yaml").write_text(case.text)
    with pytest.raises(ConfigError) as caught:
        load_config("prod.yaml", case.environ)
    assert caught.value.problems == case.lines
    assert caught.value.exit_status == EXIT_CONFIG == 78


def test_the_good_file_of_the_cases_is_good(folder: Path) -> None:
    (folder / "prod.yaml").write_text(GOOD)
    assert load_config("prod.yaml", {}).name == "shop"


def test_a_missing_file_a_folder_and_bytes_that_are_not_text_are_one_line_each(folder: Path) -> None:
    (folder / "bytes.yaml").write_bytes(b"name: \xff\xfe")
    (folder / "nul.yaml").write_bytes(b"name: sh\0p")
    lines = []
    for name in ("absent.yaml", ".", "bytes.yaml", "nul.yaml"):
        with pytest.raises(ConfigError) as caught:
            load_config(name, {})
        lines += caught.value.problems
    assert lines == [
        f"absent.yaml: cannot be read: No such file or directory in {folder}",
        ".: cannot be read: Is a directory",
        "bytes.yaml: is not UTF-8 text",
        "nul.yaml: has a character that YAML does not allow",
    ]


def test_problems_of_file_and_environment_come_together(folder: Path) -> None:
    (folder / "prod.yaml").write_text(GOOD + "log: {level: loud}\n")
    with pytest.raises(ConfigError) as caught:
        load_config("prod.yaml", {"CDCD_ADMIN__PORT": "x", "CDCD_SNIK__DELIVERY": "exactly_once"})
    assert [line.partition(":")[0] for line in caught.value.problems] == [
        "log.level",
        "admin.port",
        "CDCD_SNIK__DELIVERY",
    ]
