"""After an error that an option of the stream may have caused, the next session streams without the option.

In: the options that a session wants, the error that ended the last one.  Out: the options for the next session, the
error to report.

Streaming: PostgreSQL 14 to 18 may decode a subtransaction for the stream that is rolled back by then, because the
reader is behind. They then discard, together with its rows, the catalog changes that other sessions committed
meanwhile, and confuse catalog rows that the transaction changes itself. The results: an internal error at each retry,
even after the commit, so that the slot would never advance; a table described without its key, or with its former
types; or, without any error, missing columns and missing newly published tables. These servers also give a logical
message the id of the top-level transaction, so that a message of a rolled-back subtransaction looks like the others;
and they do not report each rollback (`Assembler.subtransactions_ended_by`). Without streaming, the server decodes the
transaction after its commit, correctly.

Binary: a type may have a send format that only its author knows, or whose meaning only the server knows (a regclass
is sent as an oid); and an array, composite or range of a type without a send function cannot be sent at all. pgoutput
has one format for the whole stream, so all values are read as text.

Two-phase: a slot with two_phase cannot be read without it, because the server sends prepared transactions anyway; the
error says how the slot is replaced. PostgreSQL 15 to 18 that decode a prepared transaction after its ROLLBACK
PREPARED detect the rollback for the rows of the transaction itself, not for those of its subtransactions. If a
subtransaction rewrote a table, the table's entry in the catalog is not found, at every attempt.
Invariant: an error that also occurs without the option has another cause, and halts.
Must not: confirm or skip anything; the next session begins at the same position as the failed one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from cdcd.errors import (
    BinaryFailed,
    BinaryUnreadable,
    CdcdError,
    KeyChanged,
    OptionFailed,
    ReplicaIdentityIncomplete,
    SchemaIncompatible,
    SendFunctionMissing,
    ServerInternal,
    StreamingFailed,
    TwoPhaseFailed,
    UnsafeStreaming,
)
from cdcd.source.settings import StreamOptions

_OFF: dict[str, Any] = {"streaming": "off", "binary": False}
"""The value that turns each option off."""

_UNSAFE_OPTIONS: tuple[tuple[str, tuple[type[CdcdError], ...], Callable[..., OptionFailed], str], ...] = (
    (
        "streaming",
        (ServerInternal, KeyChanged, SchemaIncompatible, ReplicaIdentityIncomplete, UnsafeStreaming),
        StreamingFailed,
        "while open transactions were streamed",
    ),
    ("binary", (BinaryUnreadable, SendFunctionMissing), BinaryFailed, "while values were sent in binary"),
)
"""(option, the errors that it may cause, the error to raise instead, the circumstances for its message)."""


def allowed_options(wanted: StreamOptions, ended_by: CdcdError | None) -> StreamOptions:
    """Return the options that the session after the one with the error `ended_by` may ask for."""
    return without(wanted, ended_by.without if isinstance(ended_by, OptionFailed) else ())


def without(wanted: StreamOptions, left_out: tuple[str, ...]) -> StreamOptions:
    """Return the options with those named left out."""
    return replace(wanted, **{option: _OFF[option] for option in left_out})


def to_remember(before: CdcdError | None, ended_by: CdcdError, *, has_streamed: bool) -> CdcdError:
    """Return the `last_error` of the next session.

    A session that ended before it streamed proves nothing about the option, so an earlier StreamingFailed remains.
    """
    return before if isinstance(before, StreamingFailed) and not has_streamed else ended_by


@contextlib.contextmanager
def unsafe_options(
    options: StreamOptions, last_error: CdcdError | None = None, *, slot: str
) -> Iterator[None]:
    """Raise OptionFailed or TwoPhaseFailed for an error that one of the options may have caused.

    `last_error`: the error that ended the session before. `slot`: the name of the slot that is read.
    """
    try:
        yield
    except CdcdError as error:
        for option, kinds, failure, when in _UNSAFE_OPTIONS:
            if isinstance(error, kinds) and getattr(options, option) != _OFF[option]:
                already = last_error.without if isinstance(last_error, OptionFailed) else ()
                failed = failure(f"{when}: {error.message}", (*already, option))
                failed.context.update(error.context)
                raise failed from error
        if (
            isinstance(error, ServerInternal)
            and options.two_phase
            and error.context.get("sqlstate") == "XX000"
        ):
            message = f"a prepared transaction cannot be decoded any more: {error.message}"
            raise TwoPhaseFailed(message, slot, **error.context) from error
        raise
