"""`cdcd verify` without servers: its arguments, its progress, the outcomes of a mirror."""

from __future__ import annotations

import builtins
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.cli import _parser
from cdcd.cli import verify as command
from cdcd.cli.verify import Request, verify
from cdcd.cli.verify_mirror import _outcome, verify_mirror
from cdcd.cli.verify_output import Progress, Shown
from cdcd.cli.verify_state import (
    MOST_AGE_S,
    StoredOutcomes,
    has_entries,
    only_run,
    remove_entries,
    replace_file,
)
from cdcd.errors import ConfigError, SourceUnavailable
from cdcd.verify.outcome import DIFFERS, EQUAL, UNKNOWN, CannotTell, DifferentRow, TableOutcome, as_lines
from cdcd.verify.records import share_of


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--sample", "0", "a percentage above 0 and up to 100"),
        ("--sample", "101", "a percentage above 0 and up to 100"),
        ("--rate", "0", "a positive number of rows per second"),
        ("--rate", "nan", "a positive number of rows per second"),
        ("--rate", "fast", "a positive number of rows per second"),
        ("--timeout", "inf", "a positive number of seconds"),
        ("--limit", "0", "a positive whole number"),
        ("--limit", "1.5", "a positive whole number"),
    ],
)
def test_a_wrong_number_is_refused(
    option: str, value: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["verify", "--config", "x", option, value])
    assert f"argument {option}: {value} is not {wanted}" in capsys.readouterr().err


def test_the_progress_is_one_line_that_is_drawn_again_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 10.0
    progress = Progress(is_drawn=True, clock=lambda: now_s)
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
    progress = Progress(is_drawn=False)
    progress.show("public.t", "topics", 500, 1000)
    progress.end()
    assert capsys.readouterr().err == ""


def result(**over: object) -> SimpleNamespace:
    known = {"topic": "shop.public.t", "status": "equal", "reason": "", "rows_in_topic": 5, "rows_in_mirror": 5,
             "missing": 0, "extra": 0, "different": 0, "unknown_rows": 0, "keys": None, "lsn": "0/1A"}  # fmt: skip
    return SimpleNamespace(**known | over)


def test_the_outcomes_of_a_mirror() -> None:
    differs = result(status="differs", rows_in_mirror=4, missing=1, keys={"missing": ("ab",)})
    found = [_outcome(one, 1.0, 2) for one in (result(), differs, result(status="unknown", reason="no key"))]
    assert found[1].rows == [DifferentRow("missing", "ab")]
    assert as_lines(found, "topic", "mirror") == [
        "equal   shop.public.t: 5 rows in the topic at 0/1A, 5 in the mirror (1.0 s)",
        "differs shop.public.t: 5 rows in the topic at 0/1A, 4 in the mirror, 1 missing (1.0 s)",
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
        verify_mirror(tmp_path, "/data/shop", {}, (), shows_keys=False, most_rows=1, outcomes=[])


# --- the status and the outcomes after an error


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception | None, **over: Any) -> int:
    """Run the command; the outcome of a table is found, then the error is raised."""
    outcome = TableOutcome("public.t", over.pop("state", EQUAL), rows_in_source=5, rows_in_topics=5)
    outcome.lsn, config = over.pop("lsn", None), over.pop("config", None)
    request = Request(metrics=tmp_path / "verify.prom", **over)

    def found(
        _config: Any, _request: Any, _folder: Path, _progress: Any, outcomes: list[TableOutcome]
    ) -> None:
        outcomes.append(outcome)
        if error is not None:
            raise error

    monkeypatch.setattr(command, "_add_outcomes", found)
    return verify(config, tmp_path / "x.yaml", request)


ERRORS = [
    OSError(28, "No space left on device"),
    EOFError(),
    UnicodeEncodeError("ascii", "secret value é", 13, 14, "no"),
    SourceUnavailable("the server is gone"),
    ValueError("secret value"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda one: type(one).__name__)
def test_an_error_is_status_2_and_what_was_found_before_is_shown(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "verify.prom").write_text("cdcd_verify_complete 1")
    assert run(monkeypatch, tmp_path, error) == 2
    shown = capsys.readouterr()
    assert "equal   public.t: 5 rows" in shown.out
    assert shown.err.startswith("cdcd: ")
    assert "secret value" not in shown.out + shown.err
    assert "cdcd_verify_complete 0\n" in (tmp_path / "verify.prom").read_text()


def test_a_table_that_differs_is_status_1_also_where_an_error_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, OSError(5, "input/output error"), state=DIFFERS, is_json=True) == 1
    page = json.loads(capsys.readouterr().out)
    assert page["status"] == 1
    assert "input/output error" in page["errors"][0]
    assert page["tables"][0]["state"] == DIFFERS


def test_an_error_of_the_mirror_leaves_the_findings_of_the_topics(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreadable(*_: Any, **__: Any) -> Any:
        raise OSError(13, "permission denied")

    monkeypatch.setattr(command, "require_mirror", lambda *_: None)
    monkeypatch.setattr(command, "verify_mirror", unreadable)
    assert run(monkeypatch, tmp_path, None, state=DIFFERS, mirror="/data/shop") == 1
    shown = capsys.readouterr().out
    assert "differs public.t" in shown
    assert "unknown the mirror: PermissionError" in shown
    assert 'state="differs"} 1' in (tmp_path / "verify.prom").read_text()
    assert run(monkeypatch, tmp_path, None, mirror="/data/shop") == 2


def test_a_mirror_that_lacks_the_compared_commits_is_not_equal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mirror that has stopped is equal to the topics as of its last version."""
    asked = []

    def behind(target: str, _options: Any, lsn: int, timeout_s: float, *, slot: str) -> str:
        asked.append((target, lsn, timeout_s, slot))
        return "it lacks commits"

    def equal(*_: Any, outcomes: list[TableOutcome], **__: Any) -> None:
        outcomes.append(_outcome(result(), 1.0, 100))

    monkeypatch.setattr(command, "require_mirror", lambda *_: None)
    monkeypatch.setattr(command, "why_behind", behind)
    monkeypatch.setattr(command, "verify_mirror", equal)
    config = SimpleNamespace(source=SimpleNamespace(slot=SimpleNamespace(name="cdcd_shop")))
    over: dict[str, Any] = {"lsn": "0/A0", "config": config, "mirror": "/data/shop"}
    assert run(monkeypatch, tmp_path, None, **over, timeout_s=60.0, mirror_limit_s=20.0) == 2
    assert asked == [("/data/shop", 0xA0, 20.0, "cdcd_shop")]
    assert "unknown the mirror: it lacks commits" in capsys.readouterr().out
    monkeypatch.setattr(command, "why_behind", lambda *_, **__: "")
    assert run(monkeypatch, tmp_path, None, **over) == 0


def test_an_error_between_the_tables_of_a_mirror_leaves_the_outcomes_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, outcomes: list[TableOutcome], **__: Any) -> None:
        outcomes.append(_outcome(result(status="differs", rows_in_mirror=4, missing=1), 1.0, 100))
        raise ValueError("secret value")

    monkeypatch.setattr(command, "require_mirror", lambda *_: None)
    monkeypatch.setattr(command, "verify_mirror", broken)
    assert run(monkeypatch, tmp_path, None, mirror="/data/shop", is_json=True) == 1
    page = json.loads(capsys.readouterr().out)
    assert [one["state"] for one in page["mirror"]] == [DIFFERS, UNKNOWN]
    assert "secret" not in str(page)


def test_without_the_extra_the_mirror_is_refused_before_the_topics_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: Any) -> None:
        raise ConfigError("--mirror needs the package pyspark")

    monkeypatch.setattr(command, "require_mirror", missing)
    with pytest.raises(ConfigError, match="pyspark"):
        run(monkeypatch, tmp_path, AssertionError("the topics were read"), mirror="/data/shop")


def test_each_outcome_is_printed_as_soon_as_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = Shown("topic", "mirror")
    outcomes.append(TableOutcome("shop.public.t", EQUAL, rows_in_source=5, rows_in_topics=5))
    assert capsys.readouterr().out == "equal   shop.public.t: 5 rows in the topic, 5 in the mirror (0.0 s)\n"
    outcomes.append(TableOutcome("shop.public.u", UNKNOWN, "no key"))
    outcomes.end()
    assert capsys.readouterr().out == "unknown shop.public.u: no key\n1 equal, 0 differs, 1 unknown\n"
    silent = Shown(is_shown=False)
    silent.append(outcomes[0])
    silent.end()
    assert capsys.readouterr().out == ""


def test_an_error_of_one_table_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_table: Any, _topic: str) -> TableOutcome:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "_partly_copied", lambda _config, _title: "")
    monkeypatch.setattr(command, "topic_name", lambda *_, **__: "shop.public.t")
    config = SimpleNamespace(name="shop", sink=SimpleNamespace(topics=SimpleNamespace(template="")))
    table = SimpleNamespace(schema="public", name="t")
    found = command._outcome_of(config, SimpleNamespace(compare=full), table, 1)  # type: ignore[arg-type]
    assert (found.state, found.reason) == (UNKNOWN, "OSError: [Errno 28] No space left on device")


def test_two_tables_with_one_name_are_not_compared_as_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Names may have dots: those of the schema "a.b" and of "a"."""
    tables = [SimpleNamespace(schema=schema, name=name) for schema, name in (("a.b", "c"), ("a", "b.c"))]
    source = SimpleNamespace(tables=lambda: [*tables, SimpleNamespace(schema="a", name="d")], close=list)
    compared: list[str] = []

    def compare(table: Any, _topic: str) -> TableOutcome:
        compared.append(table.name)
        return TableOutcome(command._title(table), EQUAL)

    ids, settings = SimpleNamespace(close=list, schema=None), SimpleNamespace(template="")
    config: Any = SimpleNamespace(
        name="shop",
        schema_topic="schemas",
        sink=SimpleNamespace(topics=settings),
        snapshot=SimpleNamespace(copies_tables=True, new_tables_policy="snapshot"),
        format=SimpleNamespace(policies=lambda: None),
        source_settings=lambda: None,
    )
    for name, made in (
        ("command_settings", settings), ("TopicIds", ids), ("Source", source), ("topic_name", "t"),
        ("_partly_copied", ""), ("Verification", SimpleNamespace(compare=compare)),
    ):  # fmt: skip
        monkeypatch.setattr(command, name, lambda *_, _made=made, **__: _made)
    outcomes = Shown(is_shown=False)
    command._add_outcomes(config, Request(), tmp_path, Progress(is_drawn=False), outcomes)
    assert {one.table: one.state for one in outcomes} == {"a.b.c": UNKNOWN, "a.d": EQUAL}
    assert compared == ["d"]


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize(("state", "status"), [(EQUAL, 2), (DIFFERS, 1)])
def test_a_result_that_cannot_be_printed_is_not_one_that_differs(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_json: bool,
    state: str,
    status: int,
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert run(monkeypatch, tmp_path, None, state=state, is_json=is_json) == status
        with contextlib.suppress(OSError):
            full.close()
    assert "No space left on device" in capsys.readouterr().err


def test_metrics_that_cannot_be_written_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "verify.prom").mkdir()
    assert run(monkeypatch, tmp_path, None) == 2
    assert "--metrics-file was not written" in capsys.readouterr().err


def test_each_run_samples_other_keys_and_a_printed_window_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    share = share_of(10)
    monkeypatch.setattr("random.randrange", lambda count: count - 1)
    assert command._window(Request(percent=10), share, None) == 9
    assert capsys.readouterr().err == "cdcd: sample window 10 of 10\n"
    assert command._window(Request(percent=10), share, 4) == 4  # an interrupted run continues with its own
    assert command._window(Request(percent=10, window=3), share, 2) == 2
    with pytest.raises(ConfigError, match="1 to 10"):
        command._window(Request(percent=10, window=12), share, None)
    capsys.readouterr()
    assert command._window(Request(), share_of(100), None) == 0
    assert capsys.readouterr().err == ""


# --- the state of an interrupted run


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., StoredOutcomes]:
    def opened(server: str = "7", now_s: float = 100.0, **over: bool) -> StoredOutcomes:
        has_keys = over.get("has_keys", False)
        return StoredOutcomes(tmp_path, {"server": server}, has_keys=has_keys, clock=lambda: now_s)

    return opened


def differing(key: str = "alice@example.com") -> TableOutcome:
    return TableOutcome("public.d", DIFFERS, missing=1, rows=[DifferentRow("missing", key)])


def test_the_outcomes_of_an_interrupted_run_hold_for_a_day(stored: Callable[..., StoredOutcomes]) -> None:
    state = stored()
    state.begin(3)
    for one in (TableOutcome("public.t", EQUAL), differing("00ff"), TableOutcome("public.u", UNKNOWN, "why")):
        state.add(one)
    assert stored().outcomes() == [TableOutcome("public.t", EQUAL), differing("00ff")]  # unknown ones again
    assert stored().window == 3
    assert stored(now_s=101.0 + MOST_AGE_S).outcomes() == []
    assert stored(now_s=99.0).outcomes() == []


def test_the_outcomes_of_another_run_are_not_taken_over(stored: Callable[..., StoredOutcomes]) -> None:
    state = stored()
    state.begin(3)
    state.add(TableOutcome("public.t", EQUAL))
    other = stored(server="8")
    assert (other.outcomes(), other.window) == ([], None)


def test_no_key_is_stored_and_the_file_is_private(
    stored: Callable[..., StoredOutcomes], tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    state = stored(has_keys=True)
    state.begin(0)
    state.add(differing())
    (path,) = tmp_path.iterdir()
    assert "alice" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert stored(has_keys=True).outcomes() == []


def test_a_run_that_ended_leaves_no_outcome(stored: Callable[..., StoredOutcomes], tmp_path: Path) -> None:
    state = stored()
    state.begin(3)
    state.add(TableOutcome("public.t", EQUAL))
    state.end(is_known=False)
    assert (stored().outcomes(), stored().window) == ([], 3)
    state.end(is_known=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_has_entries_only_where_another_run_can_continue(tmp_path: Path) -> None:
    """A table that is always unknown, as one without a key, does not keep the window of the sample for ever."""
    (tmp_path / "500").mkdir()
    assert not has_entries(tmp_path / "500")
    (tmp_path / "500" / "topics.json").write_text("{}")
    assert has_entries(tmp_path / "500")
    (tmp_path / "outcomes.json").write_text("{}")
    remove_entries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["outcomes.json"]


def test_two_runs_do_not_use_one_folder(tmp_path: Path) -> None:
    with (
        only_run(tmp_path),
        pytest.raises(CannotTell, match=r"another run .* uses the folder"),
        only_run(tmp_path),
    ):
        pass
    with only_run(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '[{"table": "public.t"}]'])
def test_a_state_of_another_form_is_ignored(
    stored: Callable[..., StoredOutcomes], tmp_path: Path, text: str
) -> None:
    (tmp_path / "outcomes.json").write_text(text)
    assert stored().outcomes() == []


def test_a_file_is_replaced_without_a_file_of_another_name(tmp_path: Path) -> None:
    (tmp_path / "verify.new").write_text("another")
    replace_file(tmp_path / "verify.prom", "text", 0o644)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "verify.new": "another",
        "verify.prom": "text",
    }
    assert (tmp_path / "verify.prom").stat().st_mode & 0o777 == 0o644
