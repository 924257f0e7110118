"""Names use words of PostgreSQL, Kafka, Avro or Python (CONTRIBUTING.md, Glossary), and no retired words.

The rule covers identifiers in `cdcd` and `tests` (classes, functions, arguments, variables, attributes, keywords,
imports), also those of Cython and of stubs, file names, metrics, log events, options and error codes. The names of
tests are sentences: of these it covers `RETIRED_IN_SENTENCES` only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cdcd import errors
from cdcd.config.shape import options
from tests.support.syntax import syntax_tree

ROOT = Path(__file__).parents[2]
FOLDERS = ("cdcd", "tests")

# Parts of names: `_told`, `told_taken` and `ToldTaken` contain `told`. The value is the replacement.
RETIRED_PARTS = {
    "boundary": "commit position",
    "boundaries": "commit positions",
    "strays": "orphan subxids",
    "doubting": "unsafe options",
    "doubtful": "unsafe",
    "unsure": "unsafe streaming",
    "errand": "maintenance",
    "arranged": "by partition",
    "lull": "pause for commit",
    "hurried": "flushing",
    "told": "what it was: reported, accepted, explained",
    "untold": "unreported",
    "twin": "C extension, Python fallback; of a timeline: conflict",
    "twins": "C extension, Python fallback",
    "kernel": "C extension",
    "kernels": "C extensions",
    "mend": "hint",
    "mending": "resolution",
    "mends": "resolves",
    "mended": "resolved",
    "beside": "background tasks; in addition to",
    "asking": "queries; the connection or client that queries",
    "kept": "what it is: retained, cached, unchanged, withheld",
    "patience": "timeout; of a group of records: linger",
    "heaps": "malloc arenas",
}

# A test's name is a sentence, in which other retired words are ordinary English.
RETIRED_IN_SENTENCES = {
    "told",
    "untold",
    "mend",
    "mends",
    "mended",
    "mending",
    "beside",
    "kept",
    "errand",
    "twin",
    "twins",
}

# Complete names.
RETIRED_NAMES = {
    "rest_us": "commit_cooldown_us",
    "hand_over": "produce_batch",
    "handed_over": "produced",
    "stand_in": "placeholder",
    "StandIn": "Placeholder",
    "letting_go": "release",
    "LettingGo": "Release",
    "LetGo": "ReleaseReader",
    "way_on": "resolution",
    "publication_watch": "publication_monitor",
    "PublicationWatch": "PublicationMonitor",
    "written_part": "partial_transaction",
    "is_seen_early": "is_at_least_once",
    "crash_points": "failpoints",
    "Recent": "LruCache",
    "KeptTopics": "TopicIdentities",
    "kept_topics": "topic_identity",
    "Book": "SchemaIndex",
    "book": "schema_index",
    "Known": "SchemaCache",
    "Earlier": "VersionCache",
    "Standing": "UnpublishedTable",
    "Begun": "StartState",
    "Ended": "SessionOutcome",
    "Beginning": "SessionStart",
    "WrittenPart": "PartialTransaction",
    "PartMissing": "PartialTransactionMissing",
    "PassedOver": "Skipped",
    "HeldShown": "PreparedStatus",
    "Undecided": "PreparedTransaction",
    "Owned": "OwnedByAnother",
    "Transactions": "TransactionBatch",
    "SentUnreadable": "BinaryValueUnreadable",
    "IdentityShort": "ReplicaIdentityIncomplete",
    "SlotGivenUp": "SlotDroppedByWalGuard",
    "SendMissing": "SendFunctionMissing",
    "MemoryShort": "OutOfMemory",
    "StreamUnsure": "UnsafeStreaming",
    "is_beside": "may_run",
    "ways_on": "resolutions_of",
    "KnownGauge": "OptionalGauge",
    "Repeats": "LogDeduplicator",
    "Answered": "RegistryErrorAnswer",
    "Judged": "GuardVerdict",
    "HeldUp": "BlockedSessions",
    "Defect": "InternalError",
    "MovedFile": "ReplacedFile",
    "Claims": "TopicOwnership",
    "Trial": "SchemaDryRun",
    "Tried": "TopicResult",
    "Note": "WaitEntry",
    "AGAIN": "LIMITED",
    "Kind": "what it is a kind of: WaitKind, SnapshotKind, WireFormat, ColumnKind",
    "Seen": "what was seen: WaitCause, CatalogVersions",
}

# Ordinary words of English or Python, retired only as complete names and only where they had a meaning of their own.
# The holders of locks are PostgreSQL's own term, the parts of a text or of a URL are Python's.
RETIRED_IN = {
    "cdcd": {"Run": "RowBatch"},
    "cdcd/txn": {
        "held": "oldest_prepared",
        "run": "row_batch",
        "runs": "row_batches",
        "whole": "transaction_batch",
    },
    "cdcd/monitoring": {"held": "oldest_prepared", "holders": "oldest_transaction"},
    "cdcd/pipeline": {"held": "oldest_prepared", "parts": "partial_transaction"},
    "cdcd/ack": {"held": "oldest_prepared", "parts": "partial_transaction"},
    "cdcd/avro": {"places": "field_offsets", "run": "row_batch", "runs": "row_batches"},
    "cdcd/registry": {"known": "schema_cache"},
    "cdcd/schema/schema_index.py": {"known": "registered"},
    "cdcd/sink": {"faults": "error_map"},
    "cdcd/source/oldest_transaction.py": {"holders": "oldest_transaction", "holder": "oldest_transaction"},
    "cdcd/source/publication_diff.py": {"told": "reported"},
    "cdcd/process": {"collector": "gc_tuning"},
    "cdcd/snapshot/table.py": {"_held": "_locked_table"},
    "cdcd/failpoints.py": {"reach": "hit"},
}

# Renamed modules, which must not return under the old name.
RETIRED_MODULES = {
    "cdcd/crash_points.py": "cdcd/failpoints.py",
    "cdcd/recent.py": "cdcd/lru_cache.py",
    "cdcd/session/start_checks/schema_trial.py": "cdcd/session/start_checks/schema_dry_run.py",
    "cdcd/sink/claims.py": "cdcd/sink/topic_ownership.py",
    "cdcd/snapshot/marks.py": "cdcd/snapshot/publication_versions.py",
    "cdcd/snapshot/moved.py": "cdcd/snapshot/replaced_files.py",
    "cdcd/kernels.py": "C extension, Python fallback",
    "cdcd/runtime": "cdcd/recovery, pipeline, session, monitoring, process",
    "cdcd/avro/places.py": "cdcd/avro/field_offsets.py",
    "cdcd/avro/stand_in.py": "cdcd/avro/placeholder.py",
    "cdcd/cli/alone.py": "cdcd/cli/exclusive.py",
    "cdcd/cli/beginning.py": "cdcd/cli/start_inspection.py",
    "cdcd/cli/say.py": "cdcd/cli/output.py",
    "cdcd/ops/known.py": "cdcd/metrics/optional_gauge.py",
    "cdcd/ops/repeats.py": "cdcd/ops/log_dedup.py",
    "cdcd/ops/stray_lines.py": "cdcd/ops/stderr_lines.py",
    "cdcd/registry/known.py": "cdcd/registry/schema_cache.py",
    "cdcd/registry/through_confluent.py": "cdcd/registry/confluent_client.py",
    "cdcd/schema/book.py": "cdcd/schema/schema_index.py",
    "cdcd/schema/named.py": "cdcd/schema/named_types.py",
    "cdcd/schema/sent": "cdcd/schema/binary_format",
    "cdcd/sink/faults.py": "cdcd/sink/error_map.py",
    "cdcd/sink/hand_over.py": "cdcd/sink/produce_batch.py",
    "cdcd/sink/kept_topics.py": "cdcd/sink/topic_identity.py",
    "cdcd/sink/rights.py": "cdcd/sink/acls.py",
    "cdcd/source/failures.py": "cdcd/source/error_map.py",
    "cdcd/source/holders.py": "cdcd/source/oldest_transaction.py",
    "cdcd/source/published.py": "cdcd/source/publication_diff.py",
    "cdcd/source/refusals.py": "cdcd/source/connect_errors.py",
    "cdcd/source/watched.py": "cdcd/source/lock_watch.py",
    "cdcd/session/asking.py": "cdcd/session/queries.py",
    "cdcd/session/beginning.py": "cdcd/session/start_state.py",
    "cdcd/session/beside.py": "cdcd/session/background_tasks.py",
    "cdcd/process/collector.py": "cdcd/process/gc_tuning.py",
    "cdcd/session/copying.py": "cdcd/session/snapshot_handover.py",
    "cdcd/session/fallback.py": "cdcd/session/option_downgrade.py",
    "cdcd/process/heaps.py": "cdcd/process/malloc_arenas.py",
    "cdcd/monitoring/held.py": "cdcd/monitoring/prepared_status.py",
    "cdcd/monitoring/held_up.py": "cdcd/monitoring/blocked_sessions.py",
    "cdcd/process/letting_go.py": "cdcd/process/release.py",
    "cdcd/session/looking.py": "cdcd/session/start_checks",
    "cdcd/recovery/mending.py": "cdcd/recovery/resolutions.py",
    "cdcd/pipeline/parts.py": "cdcd/pipeline/partial_transaction.py",
    "cdcd/monitoring/publication_watch.py": "cdcd/monitoring/publication_monitor.py",
    "cdcd/session/schemas_beside.py": "cdcd/session/schema_warnings.py",
    "cdcd/monitoring/waiting_for.py": "cdcd/monitoring/retry_waits.py",
    "cdcd/source/publication.py": "cdcd/source/publication_catalog.py",
    "cdcd/txn/ahead.py": "cdcd/txn/lookahead.py",
    "cdcd/txn/waiting.py": "cdcd/txn/open_transactions.py",
    "cdcd/txn/whole.py": "transaction batch",
}

_WORD = re.compile(r"[A-Za-z_]\w*")

PYTHON, CYTHON = ("*.py",), ("*.pyx", "*.pxi", "*.pxd", "*.pyi")
_CYTHON_TEXT = re.compile(r"(?s:\"\"\".*?\"\"\")|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|#.*")
"""Strings and comments of Cython, for which the standard library has no parser."""

LOG_METHODS = {"debug", "info", "warning", "error", "critical", "exception", "say", "log"}


def files(patterns: tuple[str, ...] = (*PYTHON, *CYTHON)) -> list[Path]:
    found = (path for folder in FOLDERS for pattern in patterns for path in (ROOT / folder).rglob(pattern))
    return sorted(found)


def named(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each identifier that a file defines or uses, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg | ast.keyword) and node.arg is not None:
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield from ((node.lineno, part) for part in (alias.asname or alias.name).split("."))
            yield from ((node.lineno, part) for part in (getattr(node, "module", None) or "").split("."))
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, name) for name in _events_and_metrics(node))


def _events_and_metrics(call: ast.Call) -> Iterator[str]:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    for argument in call.args[:2]:
        if isinstance(argument, ast.Constant) and re.fullmatch(r"[a-z]+(_[a-z]+)+", str(argument.value)):
            text = str(argument.value)
            if method.lstrip("_") in LOG_METHODS or text.startswith("cdcd_") or method.startswith("_"):
                yield text


def parts(name: str) -> set[str]:
    """Return the words of a name, written as `held_up`, `HELD_UP`, `HeldUp` or `HELD-UP`."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def named_in_cython(text: str) -> Iterator[tuple[int, str]]:
    """Yield each word of Cython code or of a stub, without its strings and comments, with its line."""
    code = _CYTHON_TEXT.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), start=1):
        yield from ((number, name) for name in _WORD.findall(line))


def retired(name: str, path: str = "") -> list[str]:
    """Return why a name is retired, in the file of this path below the project; nothing if it is not."""
    here = retired_here(path)
    return [*retired_everywhere(name), *([f"{name} -> {here[name]}"] if name in here else [])]


@cache
def retired_everywhere(name: str) -> tuple[str, ...]:
    words = parts(name) & RETIRED_PARTS.keys()
    if name.startswith("test_"):
        words &= RETIRED_IN_SENTENCES
    found = (f"{word} -> {RETIRED_PARTS[word]}" for word in sorted(words))
    return (*found, *([f"{name} -> {RETIRED_NAMES[name]}"] if name in RETIRED_NAMES else []))


@cache
def retired_here(path: str) -> dict[str, str]:
    return {
        key: new
        for where, names in RETIRED_IN.items()
        if path.startswith(where)
        for key, new in names.items()
    }


def retired_in(path: Path) -> list[str]:
    """Return the retired identifiers of a file, each with its line and its replacement."""
    text = path.read_text()
    place = str(path.relative_to(ROOT))
    if path == Path(__file__) or not any(retired(word, place) for word in set(_WORD.findall(text))):
        return []  # the parser takes much longer
    names = named(syntax_tree(text)) if path.suffix == ".py" else named_in_cython(text)
    return [f"{place}:{line}: {name}: {what}" for line, name in names for what in retired(name, place)]


def test_no_identifier_is_a_retired_word() -> None:
    """All files are one case: each worker collects each case, and there are more than a thousand files."""
    assert len(paths := files()) > 1000
    assert [found for path in paths for found in retired_in(path)] == []


def test_no_file_is_named_by_a_retired_word() -> None:
    paths = [path.relative_to(ROOT) for path in files()]
    assert [str(path) for path in paths if retired(path.stem, str(path))] == []
    # An update leaves the folder of a removed package, with its bytecode.
    there = [path for path in RETIRED_MODULES if (ROOT / path).is_file() or any((ROOT / path).rglob("*.py"))]
    assert there == []


def test_no_option_and_no_error_code_has_a_retired_word() -> None:
    codes = [getattr(errors, name).code for name in errors.__all__ if hasattr(getattr(errors, name), "code")]
    assert [name for name in codes if retired(name)] == []
    assert [one.path for one in options() if any(retired(part) for part in one.path)] == []


@pytest.mark.parametrize(
    ("name", "is_retired"),
    [
        ("_told", True),
        ("told_taken", True),
        ("ToldTaken", True),
        ("CDCD-PROTOCOL-UNSURE", True),
        ("UNTOLD", True),
        ("Book", True),
        ("bookmark", False),
        ("retold", False),
        ("rest_us", True),
        ("_PATIENCE_S", True),
        ("test_a_mistake_is_told", True),
        ("test_a_boundary_is_a_sentence", False),
    ],
)
def test_a_retired_word_is_found_as_a_part_of_a_name(name: str, is_retired: bool) -> None:
    assert bool(retired(name)) is is_retired


def test_an_ordinary_word_is_retired_only_where_it_had_a_meaning_of_its_own() -> None:
    assert retired("held", "cdcd/txn/assembler.py")
    assert retired("held", "cdcd/spark/tables/fold.py") == []
    assert retired("parts", "cdcd/pipeline/pump.py")
    assert retired("parts", "cdcd/registry/rest.py") == []


def test_every_place_of_a_retired_word_exists() -> None:
    assert [place for place in RETIRED_IN if not (ROOT / place).exists()] == []


def test_names_of_cython_are_read_without_strings_and_comments() -> None:
    code = 'cdef int told = 1  # beside\n"""kept\n"""\ncdef bytes twin = b"mend"\n'
    assert [(line, name) for line, name in named_in_cython(code) if retired(name)] == [
        (1, "told"),
        (4, "twin"),
    ]
