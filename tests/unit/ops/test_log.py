"""Each event is one log line, and no line has a password."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from cdcd.ops.log import configure
from cdcd.redaction import add_secret


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _only_what_is_said_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclude lines of clients that other tests left in this process: they may log at any time."""
    handle = logging.Logger.handle

    def handled(logger: logging.Logger, record: logging.LogRecord) -> None:
        if logger.name.startswith("cdcd.test"):
            handle(logger, record)

    monkeypatch.setattr(logging.Logger, "handle", handled)


def _lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("form", ["json", "console"])
def test_an_event_is_one_line_whatever_it_holds(form: str) -> None:
    stream = io.StringIO()
    configure("info", form, stream)  # type: ignore[arg-type]
    log = structlog.stdlib.get_logger("cdcd.test")
    log.info("streaming", table="a\nb")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("failed")
    logging.getLogger("cdcd.test.librdkafka").warning("%s: connect\nfailed", "broker 1")
    log.debug("not shown")
    assert len(_lines(stream)) == 3


def test_json_lines_carry_time_level_logger_and_keys() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    structlog.stdlib.get_logger("cdcd.test").warning("slot_active", slot="s", pid=7)
    event = json.loads(stream.getvalue())
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "slot_active", "level": "warning", "logger": "cdcd.test", "slot": "s", "pid": 7}


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_is_written(form: str) -> None:
    stream = io.StringIO()
    configure("debug", form, stream)  # type: ignore[arg-type]
    log = structlog.stdlib.get_logger("cdcd.test")
    log.info("a", password="canary", settings={"sasl.password": "canary", "list": [{"secret": "canary"}]})
    log.info("b", dsn="postgresql://cdcd:can@ary/canary@db:5432/shop", text="host=db password='it''s canary'")
    log.info("c", error=RuntimeError("basic.auth.user.info=me:canary"))
    log.info("postgresql://cdcd:canary@db/shop")
    logging.getLogger("cdcd.test.library").info("password=%s", "canary")
    try:
        raise ValueError("dsn postgresql://cdcd:canary@db/shop?password=canary")
    except ValueError:
        log.exception("d")
    text = stream.getvalue()
    assert len(_lines(stream)) == 6
    assert "canary" not in text
    assert "db:5432/shop" in text


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_a_server_says_can_neither_forge_a_line_nor_show_a_secret(form: str) -> None:
    add_secret("canary-5f3a91")
    stream = io.StringIO()
    configure("info", form, stream)  # type: ignore[arg-type]
    log = structlog.stdlib.get_logger("cdcd.test")
    hostile = "no\n2026-01-01T00:00:00Z INFO started\x1b[2J\x7f\u202e canary-5f3a91"
    log.warning(hostile, error=hostile, **{"of others": {hostile: [hostile]}})
    logging.getLogger("cdcd.test.library").warning(hostile)
    try:
        raise ValueError(hostile)
    except ValueError:
        log.exception("failed")
    text = stream.getvalue()
    assert len(text.splitlines()) == 3
    assert "canary" not in text
    assert text.replace("\n", "").isprintable()
    if form == "json":
        assert [json.loads(line)["level"] for line in text.splitlines()] == ["warning", "warning", "error"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_record_that_cannot_be_formatted_is_reported_without_its_fields(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.StringIO()
    configure("info", form, stream)  # type: ignore[arg-type]
    logging.getLogger("cdcd.test.library").warning("%d connections", "canary")
    assert "log_line_failed: cdcd.test.library: TypeError" in stream.getvalue()
    assert len(_lines(stream)) == 1
    assert "canary" not in stream.getvalue() + capsys.readouterr().err


def test_a_text_without_end_is_cut() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    structlog.stdlib.get_logger("cdcd.test").warning("failed", error="x" * 10_000_000)
    assert len(stream.getvalue()) < 100_000


def test_a_path_to_a_secret_is_not_a_secret() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    structlog.stdlib.get_logger("cdcd.test").info(
        "a", password_file="/etc/cdcd/p", **{"ssl.key.location": "/k"}
    )
    event = json.loads(stream.getvalue())
    assert event["password_file"] == "/etc/cdcd/p"
    assert event["ssl.key.location"] == "/k"


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="loud"):
        configure("loud")
