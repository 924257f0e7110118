"""What the server gets wrong while it streams open transactions is read again without streaming.

In: the options that a session wants, an error that ended it.  Out: the options it may have, the error to go on with.
PostgreSQL 14 to 18 that decode for the stream a subtransaction which is rolled back by then (the reader is behind)
throw away with its rows what was to be learnt of the catalog meanwhile: changes that other sessions committed; and
they mix up rows of the catalog that the transaction changes itself. They then fail with an internal error, each
time anew, also after the commit, so that the slot would never get past it; or describe a table without its key; or,
without a sign, leave out columns and newly published tables. And they give a logical message the id of the top-level
transaction, so that one of a subtransaction that was rolled back cannot be told from the others; and they do not
tell of each rollback (`Assembler.subtransactions_ended_by`). Decoded after its commit, without streaming, the
transaction is right.
Invariant: an error that comes without streaming as well is what it was, and halts.
Must not: confirm or skip anything; the next session begins where the failed one had to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from cdcd.errors import CdcdError, KeyChanged, ServerInternal, StreamingFailed, StreamUnsure
from cdcd.source.settings import StreamOptions


def allowed(wanted: StreamOptions, ended_by: CdcdError | None) -> StreamOptions:
    """Return what the session after one that `ended_by` ended may ask for."""
    return replace(wanted, streaming="off") if isinstance(ended_by, StreamingFailed) else wanted


def to_remember(before: CdcdError | None, ended_by: CdcdError, *, has_streamed: bool) -> CdcdError:
    """Return what the next session comes after: one that did not get to read has not lifted the doubt."""
    return before if isinstance(before, StreamingFailed) and not has_streamed else ended_by


@contextlib.contextmanager
def doubting(options: StreamOptions) -> Iterator[None]:
    """Raise StreamingFailed for what streaming itself may be the reason of."""
    try:
        yield
    except (ServerInternal, KeyChanged, StreamUnsure) as error:
        if options.streaming == "off":
            raise
        failed = StreamingFailed(f"while open transactions were streamed: {error.message}")
        failed.context.update(error.context)
        raise failed from error
