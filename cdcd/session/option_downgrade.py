"""What an option of the stream may be the reason of is read again without it.

In: the options that a session wants, an error that ended it.  Out: the options it may have, the error to go on with.

Streaming: PostgreSQL 14 to 18 that decode for the stream a subtransaction which is rolled back by then (the reader
is behind) throw away with its rows what was to be learnt of the catalog meanwhile: changes that other sessions
committed; and they mix up rows of the catalog that the transaction changes itself. They then fail with an internal
error, each time again, also after the commit, so that the slot would never get past it; or describe a table without
its key, or with the types of before; or, without a sign, leave out columns and newly published tables. And they give
a logical message the id of the top-level transaction, so that one of a subtransaction that was rolled back cannot be
told from the others; and they do not tell of each rollback (`Assembler.subtransactions_ended_by`). Decoded after its
commit, without streaming, the transaction is right.

Binary: a type may have a send format that only its author knows, or mean something by it that only the server knows
(a regclass is sent as an oid); and an array, composite or range of a type without a send function cannot be sent at
all. pgoutput has one form for the whole stream, so it is read as text.

Two-phase: a slot that has it cannot be read without (the server sends what is prepared all the same), so the error
says how the slot is exchanged. PostgreSQL 15 to 18 that decode a prepared transaction after its ROLLBACK PREPARED
notice the rollback for the rows of the transaction itself, not for those of its subtransactions: where such a one
gave a table a new file, the table's entry in the catalog is not found, each time again.
Invariant: an error that comes without the option as well is what it was, and halts.
Must not: confirm or skip anything; the next session begins where the failed one had to.
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
"""How each option is left out."""

_UNSAFE_OPTIONS: tuple[tuple[str, tuple[type[CdcdError], ...], Callable[..., OptionFailed], str], ...] = (
    (
        "streaming",
        (ServerInternal, KeyChanged, SchemaIncompatible, ReplicaIdentityIncomplete, UnsafeStreaming),
        StreamingFailed,
        "while open transactions were streamed",
    ),
    ("binary", (BinaryUnreadable, SendFunctionMissing), BinaryFailed, "while values were sent in binary"),
)
"""(option, what it may be the reason of, the error instead, when it was)."""


def allowed(wanted: StreamOptions, ended_by: CdcdError | None) -> StreamOptions:
    """Return the options that the session after the one with the error `ended_by` may ask for."""
    return without(wanted, ended_by.without if isinstance(ended_by, OptionFailed) else ())


def without(wanted: StreamOptions, left_out: tuple[str, ...]) -> StreamOptions:
    """Return the options with those named left out."""
    return replace(wanted, **{option: _OFF[option] for option in left_out})


def to_remember(before: CdcdError | None, ended_by: CdcdError, *, has_streamed: bool) -> CdcdError:
    """Return the `last_error` of the next session.

    A session that ended before it streamed has proved nothing about the option, so an earlier StreamingFailed stays.
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
