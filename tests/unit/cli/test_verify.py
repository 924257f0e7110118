"""`cdcd verify` without servers: its arguments, its progress, the outcomes of a mirror."""

from __future__ import annotations

import builtins
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.cli import _parser
from cdcd.cli.verify import _Progress
from cdcd.cli.verify_mirror import _outcome, verify_mirror
from cdcd.errors import ConfigError
from cdcd.verify.outcome import DifferentRow, as_lines


@pytest.mark.parametrize("words", [["--sample", "0"], ["--sample", "101"], ["--rate", "0"], ["--limit", "0"]])
def test_a_wrong_number_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["verify", "--config", "x", *words])
    assert words[0] in capsys.readouterr().err


def test_the_progress_is_one_line_that_is_drawn_again_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 10.0
    progress = _Progress(is_drawn=True, clock=lambda: now_s)
    progress.show("public.t", "topics", 500, 1000)
    progress.show("public.t", "topics", 501, 1000)  # too soon
    now_s = 11.0
    progress.show("public.t", "source", 7, None)
    progress.end()
    first, second, removed, rest = capsys.readouterr().err.split("\r")[1:]
    assert first == "public.t  topics: 500 records  [##########..........] 50 %"
    assert second.rstrip() == "public.t  source: 7 rows"
    assert (removed.strip(), rest) == ("", "")


def test_without_a_terminal_there_is_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    progress = _Progress(is_drawn=False)
    progress.show("public.t", "topics", 500, 1000)
    progress.end()
    assert capsys.readouterr().err == ""


def result(**over: object) -> SimpleNamespace:
    known = {"topic": "shop.public.t", "status": "equal", "reason": "", "rows_in_topic": 5, "rows_in_mirror": 5,
             "missing": 0, "extra": 0, "different": 0, "keys": None}  # fmt: skip
    return SimpleNamespace(**known | over)


def test_the_outcomes_of_a_mirror() -> None:
    differs = result(status="differs", rows_in_mirror=4, missing=1, keys={"missing": ("ab",)})
    found = [_outcome(one, 1.0) for one in (result(), differs, result(status="unknown", reason="no key"))]
    assert found[1].rows == [DifferentRow("missing", "ab")]
    assert as_lines(found, "topic", "mirror") == [
        "equal   shop.public.t: 5 rows in the topic, 5 in the mirror (1.0 s)",
        "differs shop.public.t: 5 rows in the topic, 4 in the mirror, 1 missing (1.0 s)",
        "        missing: key ab",
        "unknown shop.public.t: no key",
        "1 equal, 1 differs, 1 unknown",
    ]


def test_a_mirror_needs_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = builtins.__import__

    def without_spark(name: str, *rest: Any) -> Any:
        if name.startswith("cdcd.spark"):
            raise ModuleNotFoundError(name="pyspark")
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_spark)
    with pytest.raises(ConfigError, match="--mirror needs the package pyspark"):
        verify_mirror(tmp_path, "/data/shop", {}, (), shows_keys=False)
