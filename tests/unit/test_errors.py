"""The error tree: each class is complete, each code unique, each text one clear line."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcd import errors
from cdcd.errors import EXIT_CONFIG, EXIT_FAILURE, EXIT_FENCED, EXIT_MEMORY, CdcdError, ConfigError, Retry
from cdcd.errors.frames import drop_frames


def tree(root: type[CdcdError] = CdcdError) -> Iterator[type[CdcdError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__.startswith(f"{errors.__name__}."):
            yield from tree(child)


CLASSES = list(dict.fromkeys(tree()))
ROOT = Path(__file__).parents[2]
READ_BY_USERS = ("*.md", "docs/**/*", "config/**/*", "deploy/**/*", "helm/**/*")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_has_a_code_and_a_retry_class(cls: type[CdcdError]) -> None:
    assert "code" in vars(cls), "an inherited code does not identify the error"
    assert cls.code.startswith("CDCD-")
    assert isinstance(cls.retry, Retry)
    assert cls.__doc__


@pytest.mark.parametrize(
    "cls", [cls for cls in CLASSES if cls is not CdcdError], ids=lambda cls: cls.__name__
)
def test_every_class_says_what_can_be_done(cls: type[CdcdError]) -> None:
    """The class hint applies where an error is raised without its own hint."""
    assert cls.hint


def test_no_code_is_used_twice() -> None:
    codes = [cls.code for cls in CLASSES]
    assert len(codes) == len(set(codes))


def test_every_code_that_users_read_of_is_one_that_errors_have() -> None:
    named = {
        (path.name, code)
        for pattern in READ_BY_USERS
        for path in ROOT.glob(pattern)
        if path.is_file() and path.suffix != ".pyc"  # importing modules of deploy/ creates bytecode
        for code in re.findall(r"\bCDCD-[A-Z]+(?:-[A-Z]+)*", path.read_text())
    }
    assert len(named) > 5
    assert named - {(name, cls.code) for name, _ in named for cls in CLASSES} == set()


def test_by_default_an_error_waits_for_an_operator() -> None:
    assert CdcdError.retry is Retry.OPERATOR


@pytest.mark.parametrize(
    ("name", "retry"),
    [
        ("SourceUnavailable", Retry.AUTO),
        ("SourceAuthentication", Retry.AUTO),  # secrets are read again at each connect
        ("SlotActive", Retry.AUTO),  # F18, F74
        ("SinkUnavailable", Retry.AUTO),
        ("RegistryUnavailable", Retry.AUTO),
        ("SpillLost", Retry.AUTO),  # F27
        ("SpillError", Retry.OPERATOR),
        ("SpillFull", Retry.OPERATOR),  # F30
        ("SlotLost", Retry.OPERATOR),  # F23
        ("SlotMissing", Retry.OPERATOR),  # F10
        ("SlotAhead", Retry.OPERATOR),  # F3
        ("SourceMismatch", Retry.OPERATOR),  # F58, F62
        ("PublicationMissing", Retry.OPERATOR),  # F39, F72
        ("MessageUnknown", Retry.LIMITED),  # F19
        ("MessageOutOfOrder", Retry.LIMITED),  # F31
        ("PreparedMissing", Retry.OPERATOR),  # F33
        ("ValueUnencodable", Retry.OPERATOR),  # F54
        ("RecordTooLarge", Retry.OPERATOR),  # F65
        ("TopicMismatch", Retry.OPERATOR),  # F66
        ("SinkAuthorization", Retry.AUTO),  # F68: an ACL may be granted again, credentials are read again
        ("TransactionExpired", Retry.AUTO),
        ("RegistryRefused", Retry.OPERATOR),  # F55
        ("SinkFenced", Retry.NEVER),  # F69
        ("ConfigError", Retry.NEVER),
        ("OutOfMemory", Retry.NEVER),
    ],
)
def test_an_error_has_this_retry_class(name: str, retry: Retry) -> None:
    assert getattr(errors, name).retry is retry


@pytest.mark.parametrize(
    "cls", [cls for cls in CLASSES if cls.retry is Retry.NEVER], ids=lambda c: c.__name__
)
def test_what_ends_the_process_has_an_exit_status_of_its_own(cls: type[CdcdError]) -> None:
    assert cls.exit_status in {EXIT_CONFIG, EXIT_FENCED, EXIT_MEMORY}


def test_what_does_not_end_the_process_is_a_plain_failure() -> None:
    others = {cls.exit_status for cls in CLASSES if cls.retry is not Retry.NEVER}
    assert others == {EXIT_FAILURE}


def test_the_text_is_one_line_with_code_place_and_advice() -> None:
    error = errors.SlotAhead("moved", hint="look", slot="s", stored_lsn=0x1_0000_0020, lsn=16, count=16)
    assert str(error) == "CDCD-SLOT-AHEAD: moved [slot=s stored_lsn=1/20 lsn=0/10 count=16] -> look"


def test_the_class_gives_its_hint_where_none_is_given() -> None:
    assert str(errors.SinkFenced("x")).endswith(errors.SinkFenced.hint)
    assert str(errors.SinkFenced("x", hint="")) == "CDCD-SINK-FENCED: x"


def test_an_lsn_that_is_not_known_is_shown_as_unknown() -> None:
    assert "stored_lsn=unknown" in str(errors.SlotAhead("x", stored_lsn=None))


def test_a_configuration_error_carries_every_problem() -> None:
    assert ConfigError("bad", ("a: unknown key", "b: not a number")).problems == (
        "a: unknown key",
        "b: not a number",
    )


def test_frames_are_dropped_also_where_errors_lead_to_each_other() -> None:
    """F69: a cycle of errors, each raised while handling another, once blocked closing a fenced producer."""
    first, second, third = (_raised(word) for word in ("first", "second", "third"))
    first.__context__, second.__cause__, third.__context__ = second, third, first
    dropping = threading.Thread(target=drop_frames, args=(None, first), daemon=True)
    dropping.start()
    dropping.join(10)
    assert not dropping.is_alive()
    assert [error.__traceback__ for error in (first, second, third)] == [None] * 3


def _raised(word: str) -> Exception:
    try:
        raise ValueError(word)
    except ValueError as error:
        return error
