"""`cdcd snapshot` against a daemon's admin port: what is sent, what is printed, with which exit status."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cdcd.cli import main, snapshot
from cdcd.cli.snapshot_table import table_lines
from cdcd.config import Config, load_config
from cdcd.config.sample import sample_yaml
from cdcd.errors import NotStreaming, SnapshotRefused, SourceSetup
from cdcd.snapshot.control import SnapshotCommand, TableReport
from tests.support.snapshot_control import FakeControl, admin_port

COPYING = TableReport("shop.orders", "copying", 250, 1000, 50.0, 15.0)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a configuration whose admin port nobody listens at."""
    path = tmp_path / "cdcd.yaml"
    path.write_text(sample_yaml())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        point_at(monkeypatch, free.getsockname()[1])
    monkeypatch.setenv("CDCD_NAME", "shop")
    return path


def point_at(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setenv("CDCD_ADMIN__PORT", str(port))


@pytest.fixture
def daemon(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeControl]:
    """Serve the pages of a daemon, in a thread."""
    control, loop = FakeControl(), asyncio.new_event_loop()
    serving = threading.Thread(target=loop.run_forever, daemon=True)
    serving.start()
    port = admin_port(control)
    point_at(monkeypatch, asyncio.run_coroutine_threadsafe(port.__aenter__(), loop).result(30))
    yield control
    asyncio.run_coroutine_threadsafe(port.__aexit__(None, None, None), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    serving.join(30)
    loop.close()


def run(path: Path, *words: str) -> int:
    return main(["snapshot", *words, "--config", str(path)])


@pytest.mark.parametrize(
    ("words", "command", "printed"),
    [
        (
            ["start", "--table", "s.a", "--table", "s.b", "--where", "id > 7", "--recopy"],
            SnapshotCommand("start", ("s.a", "s.b"), "id > 7", True),
            "s.a: started\ns.b: started\n",
        ),
        (["start", "--table", "s.a"], SnapshotCommand("start", ("s.a",)), "s.a: started\n"),
        (
            ["start", "--table", "s.a", "--blocking"],
            SnapshotCommand("start", ("s.a",), is_blocking=True),
            "s.a: started\n",
        ),
        (["start", "--all", "--recopy"], SnapshotCommand("start", recopy=True), "no table is being copied\n"),
        (
            ["start", "--all", "--compare"],
            SnapshotCommand("start", compare=True),
            "no table is being copied\n",
        ),
        (["pause", "--table", "s.a"], SnapshotCommand("pause", ("s.a",)), "s.a: paused\n"),
        (["resume", "--table", "s.a"], SnapshotCommand("resume", ("s.a",)), "s.a: resumed\n"),
        (["stop", "--table", "s.a"], SnapshotCommand("stop", ("s.a",)), "s.a: stopped\n"),
        (["stop"], SnapshotCommand("stop"), "no table is being copied\n"),
    ],
)
def test_a_command_reaches_the_daemon_and_its_tables_are_printed(
    words: list[str],
    command: SnapshotCommand,
    printed: str,
    path: Path,
    daemon: FakeControl,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(path, *words) == 0
    assert daemon.commands == [command]
    assert capsys.readouterr().out == printed


def test_the_tables_that_a_start_of_all_leaves_out_are_printed(
    path: Path, daemon: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.left_out = {"s.log\x1b[2J": "the table has no key"}
    assert run(path, "start", "--all") == 0
    assert capsys.readouterr().out == "s.log\\x1b[2J: not copied: the table has no key\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "ACTION"),
        (["begin"], "invalid choice"),
        (["start"], "--table"),
        (["start", "--all", "--table", "s.a"], "not allowed with"),
        (["start", "--table", "orders"], "orders is not SCHEMA.TABLE"),
        (["start", "--table", "a\x1b[2J"], "a\\x1b[2J is not SCHEMA.TABLE"),
        (["start", "--all", "--where", "id > 1"], "error: all is only for a start without"),
        (["start", "--all", "--blocking"], "error: a blocking snapshot needs the names of its tables"),
        (["start", "--table", "s.a", "--compare", "--where", "id > 1"], "error: compare cannot be combined"),
        (["start", "--table", "s.a", "--compare", "--blocking"], "error: compare cannot be combined"),
        (["start", "--table", "s.a", "--where", " "], "argument --where: it is not an SQL condition"),
        (["start", "--table", "s.a", "--where", "x" * 20_000], "argument --where: it has more than"),
        (["stop", "--where", "true"], "unrecognized arguments: --where"),
        (["status", "--output", "xml"], "invalid choice"),
    ],
)
def test_a_wrong_usage_ends_with_2(
    words: list[str], message: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(path, *words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_name_with_control_characters_arrives_as_it_is_and_is_printed_escaped(
    path: Path, daemon: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "s.\x1b[2J\n\u202e日"
    assert run(path, "start", "--table", name) == 0
    assert daemon.commands[0].tables == (name,)
    assert capsys.readouterr().out == "s.\\x1b[2J\\n\\u202e日: started\n"


def test_a_command_without_a_daemon_asks_to_start_it_and_then_succeeds(
    path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["status"], ["status", "--watch"], ["stop"], ["start", "--table", "s.a"]):
        assert run(path, *words) == 1
        shown = capsys.readouterr()
        assert shown.err.startswith("cdcd: CDCD-SNAPSHOT-REFUSED: no cdcd answers")
        assert "or start the daemon" in shown.err
        assert shown.out == ""
    request.getfixturevalue("daemon")
    assert run(path, "start", "--table", "s.a") == 0


def test_a_command_between_two_sessions_is_repeated_later(
    path: Path, daemon: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse(_: SnapshotCommand) -> Sequence[str]:
        raise NotStreaming("the daemon is halted")

    daemon.result = refuse
    assert run(path, "start", "--table", "s.a") == 1
    error = capsys.readouterr().err
    assert "CDCD-NOT-STREAMING: the daemon is halted" in error
    assert "repeat the command when `state` of /status is streaming" in error
    daemon.result = None
    assert run(path, "start", "--table", "s.a") == 0


def test_an_error_of_the_daemon_is_printed_with_its_code_and_hint(
    path: Path, daemon: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse(_: SnapshotCommand) -> Sequence[str]:
        raise SourceSetup("no key\x1b[2J", hint="add a key", table="s.a")

    daemon.result = refuse
    assert run(path, "start", "--table", "s.a") == 1
    assert capsys.readouterr().err == "cdcd: CDCD-SOURCE-SETUP: no key\\x1b[2J [table=s.a] -> add a key\n"


def test_the_daemon_of_another_configuration_is_left_alone(
    path: Path,
    daemon: FakeControl,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CDCD_NAME", "other")
    for words in (["status"], ["start", "--table", "s.a"]):
        assert run(path, *words) == 1
        assert "another name: shop" in capsys.readouterr().err
    assert daemon.commands == []


def test_status_prints_a_line_for_each_table(
    path: Path, daemon: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(path, "status") == 0
    assert capsys.readouterr().out == "no table is being copied\n"
    daemon.tables = [
        COPYING,
        TableReport("s.b", "waiting", 0, reason="another table\nis copied"),
        TableReport("s.c", "copying", 5, kind="blocking"),
    ]
    assert run(path, "status") == 0
    heading, first, second, third = capsys.readouterr().out.splitlines()
    assert heading.split() == ["TABLE", "DONE", "ROWS", "ESTIMATE", "ROWS/S", "LEFT", "STATE"]
    assert first.split() == [
        *("shop.orders", "[##........]", "25", "%", "250", "1,000", "50", "0:15", "copying")
    ]
    assert second.split() == [*("s.b", "-", "0", "-", "-", "-", "waiting", "another", "table\\nis", "copied")]
    assert third.split() == [*("s.c", "-", "5", "-", "-", "-", "blocking,", "copying")]


def test_status_as_json_is_for_programs(
    path: Path, daemon: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.tables = [COPYING, TableReport("s.\x1b[2J\u202e", "paused", 1)]
    assert run(path, "status", "--output", "json") == 0
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    first, second = json.loads(out)
    assert first["estimated_rows"] == 1000
    assert second == {
        "table": "s.\x1b[2J\u202e",
        "state": "paused",
        "rows": 1,
        "estimated_rows": None,
        "rows_per_second": None,
        "seconds_left": None,
        "reason": None,
        "kind": "incremental",
    }


def watched(path: Path, daemon: FakeControl, *states: list[TableReport] | None, is_json: bool = False) -> int:
    """Watch a daemon that has these reports, one after another; None: it does not know them."""
    following = iter(states)
    daemon.tables = next(following)

    def pause() -> None:
        daemon.tables = next(following)

    return snapshot.watch(loaded(path), is_json=is_json, pause=pause)


def loaded(path: Path) -> Config:
    return load_config(path, os.environ)


def test_watching_ends_when_nothing_is_left_and_prints_what_has_changed(
    path: Path, daemon: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    done = TableReport("shop.orders", "copying", 999, 1000, 50.0, 0.0)
    assert watched(path, daemon, [COPYING], [COPYING], [done], []) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["TABLE", "shop.orders", "shop.orders", "no"]
    assert " 99 %" in out[2]


def test_watching_ends_with_1_when_all_that_is_left_has_failed(
    path: Path, daemon: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = TableReport("s.b", "failed", 0, reason="no SELECT right")
    assert watched(path, daemon, [COPYING, failed], [failed]) == 1
    assert "no SELECT right" in capsys.readouterr().out


def test_watching_waits_for_a_daemon_that_restarts(
    path: Path, daemon: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables that are not known yet are not complete."""
    assert watched(path, daemon, [COPYING], None, None, [COPYING], []) == 0
    out = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert out == ["TABLE", "shop.orders", "waiting", "TABLE", "shop.orders", "no"]
    with pytest.raises(SnapshotRefused, match="no session has read"):
        watched(path, daemon, None)


def test_watching_ends_with_the_error_if_the_daemon_does_not_come_back(
    path: Path, daemon: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_ABSENT_LOOKS", 3)
    with pytest.raises(SnapshotRefused):
        watched(path, daemon, [COPYING], None, None, None, None)


def test_watching_json_is_a_line_for_each_change(
    path: Path, daemon: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watched(path, daemon, [COPYING], [COPYING], [], is_json=True) == 0
    assert [len(json.loads(line)) for line in capsys.readouterr().out.splitlines()] == [1, 0]


def test_ctrl_c_ends_watching_in_order(path: Path, daemon: FakeControl) -> None:
    daemon.tables = [COPYING]

    def interrupt() -> None:
        raise KeyboardInterrupt

    assert snapshot.watch(loaded(path), pause=interrupt) == 0


def test_ctrl_c_ends_a_command_without_a_traceback(path: Path) -> None:
    """It may have been sent already, and the daemon executes it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-m", "cdcd", "snapshot", "start", "--table", "s.a", "--config", str(path)]
        environment = {**os.environ, "CDCD_ADMIN__PORT": str(listening.getsockname()[1])}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            connection, _ = listening.accept()
            with connection:
                assert connection.recv(1).startswith(b"P"), "the command was sent"
                process.send_signal(signal.SIGINT)
                _, shown = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert shown.startswith("cdcd: interrupted; the command may still take effect")
    assert len(shown.splitlines()) == 1


def test_on_a_terminal_the_lines_are_drawn_in_place_within_its_size(
    path: Path, daemon: FakeControl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "6")
    many = [TableReport("日" * 30 + f".{number}", "copying", number) for number in range(9)]
    one = TableReport("s.\u0301a", "waiting", 0, reason="w" * 20)
    assert watched(path, daemon, many, [one], []) == 0
    first, second, third = (part.removeprefix("J") for part in capsys.readouterr().out.split("\x1b[")[0::2])
    assert len(first.splitlines()) == 5
    assert re.fullmatch(r"\.\.\. \d+ more lines", first.splitlines()[-1])
    assert first.splitlines()[3] == "日" * 19
    assert [len(line) for line in second.splitlines()][0::2] == [
        39,
        40,
    ]  # a combining character has no column
    assert "".join(second.splitlines()).endswith("waiting  " + "w" * 20)
    assert third == "no table is being copied\n"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0.2, "0:00"), (61.0, "1:01"), (3_600.0, "1:00:00"), (180_000.0, "2d 2:00:00")],
)
def test_the_time_left_is_short(seconds: float | None, shown: str) -> None:
    report = TableReport("s.a", "copying", 1, seconds_left=seconds)
    assert table_lines([report])[1].split("  ")[-2].strip() == shown


ANSWERS = {
    "no HTTP": b"hello\r\n\r\n",
    "no JSON": b"HTTP/1.0 200 OK\r\n\r\n<html>",
    "a number": b"HTTP/1.0 200 OK\r\n\r\n7",
    "a list of texts": b'HTTP/1.0 200 OK\r\n\r\n["canary"]',
    "a report without fields": b'HTTP/1.0 200 OK\r\n\r\n[{"table": "canary"}]',
    "infinite": b'HTTP/1.0 200 OK\r\n\r\n[{"table": "s.a", "state": "copying", "rows": 1, "estimated_rows": '
    b'1e999, "rows_per_second": 1, "seconds_left": 1, "reason": null}]',
    "deep": b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 100_000,
    "endless": b"HTTP/1.0 200 OK\r\n\r\n" + b" " * (5 << 20),
    "an error of another program": b"HTTP/1.0 500 no\r\n\r\n{}",
    "an error with a forged code": b'HTTP/1.0 422 no\r\n\r\n{"code": "canary", "message": "m", "hint": "h"}',
    "another page": b"HTTP/1.0 404 no\r\n\r\n",
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("words", [["status"], ["start", "--table", "s.a"]], ids=["status", "start"])
def test_any_process_at_the_port_gives_one_clear_line(
    kind: str,
    words: list[str],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        point_at(monkeypatch, listening.getsockname()[1])
        serving = threading.Thread(target=answer_once, args=(listening, ANSWERS[kind]), daemon=True)
        serving.start()
        assert run(path, *words) == 1
        serving.join(30)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith("cdcd: CDCD-SNAPSHOT-REFUSED: ")
    assert "canary" not in shown.err


def answer_once(listening: socket.socket, answer: bytes) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(65536)
        with contextlib.suppress(ConnectionError):
            connection.sendall(answer)
