"""Replace a hint that does not fit the configuration: it proposes a value that is set already, or cannot be set.

In: an error of the tree and the configuration.  Out: the same error, with a hint that can be followed.
Invariant: the first matching row of the table decides; without one the error's own hint remains.
Must not: change how an error is handled.
"""

from __future__ import annotations

from collections.abc import Callable

from cdcd.config import Config
from cdcd.errors import CdcdError, KeyChanged, SchemaIncompatible, SpillFull, UnsafeStreaming

__all__ = ["adapt_hint"]

_BACK = "nothing was written or confirmed. Revert the change of the table, then `cdcd resume`"
_FORMER_KEY = (
    "no record with the new key was written or confirmed. Restore the table's former key, then `cdcd resume`"
)


def _is_unstreamed(config: Config) -> bool:
    return config.source.protocol.streaming == "off"


def _registers_nothing(config: Config) -> bool:
    return not config.registry.auto_register


def _has_no_topic_of_its_own(config: Config) -> bool:
    return config.registry.subjects == "record_name"


def _has_no_registry(config: Config) -> bool:
    return config.schema_topic is not None


_ROWS: tuple[tuple[type[CdcdError], Callable[[Config], bool], str], ...] = (
    (
        SpillFull,
        _is_unstreamed,
        "free disk space or raise buffer.spill. The space is used by prepared transactions: end the forgotten "
        "ones (pg_prepared_xacts) with COMMIT PREPARED or ROLLBACK PREPARED, then `cdcd resume`",
    ),
    (
        UnsafeStreaming,
        _is_unstreamed,
        "nothing of the transaction was confirmed; report the message with the server's version",
    ),
    (
        SchemaIncompatible,
        _has_no_topic_of_its_own,
        f"{_BACK}; or accept the change with registry.incompatible: register_with_none, and restart cdcd",
    ),
    (
        KeyChanged,
        _registers_nothing,
        f"{_FORMER_KEY}; or use the new key from here on: delete the subject <topic>-key from the registry, "
        "register the new key's schema, and rebuild the readers that read the topic by key",
    ),
    (
        KeyChanged,
        _has_no_registry,
        "no record with the new key was written or confirmed. Set registry.incompatible: new_topic and restart cdcd: "
        "rows with the new key go to a topic of their own; or, if no row was changed since, restore the table's "
        "former key, then `cdcd resume`",
    ),
    (
        KeyChanged,
        _has_no_topic_of_its_own,
        f"{_FORMER_KEY}; or accept the new key for all later records, and rebuild every consumer that uses the key: "
        "delete the subject of the key's record from the registry, then `cdcd resume`; it halts again if unwritten "
        "transactions have rows with both keys",
    ),
)


def adapt_hint(error: CdcdError, config: Config) -> CdcdError:
    """Return the error, with another hint if its own cannot be followed with this configuration."""
    if error.advice == error.hint:
        for cls, is_met, hint in _ROWS:
            if type(error) is cls and is_met(config):
                error.advice = hint
                break
    return error
