"""Names use words of PostgreSQL, Kafka, Avro or Python (CONTRIBUTING.md, Glossary), and no retired words.

The rule covers identifiers in `cdcd` and `tests` (classes, functions, arguments, variables, attributes, keywords,
imports), file names, metrics, log events, options and error codes. It excludes the names of tests, which are
sentences.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcd import errors
from cdcd.config.shape import options

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
}

# Complete names.
RETIRED_NAMES = {
    "patience_us": "linger_us",
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
    "cdcd/avro/places.py": "cdcd/avro/field_offsets.py",
    "cdcd/avro/stand_in.py": "cdcd/avro/placeholder.py",
    "cdcd/cli/alone.py": "cdcd/cli/exclusive.py",
    "cdcd/cli/beginning.py": "cdcd/cli/start_inspection.py",
    "cdcd/cli/say.py": "cdcd/cli/output.py",
    "cdcd/ops/known.py": "cdcd/ops/optional_gauge.py",
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
    "cdcd/txn/ahead.py": "cdcd/txn/lookahead.py",
    "cdcd/txn/waiting.py": "cdcd/txn/open_transactions.py",
    "cdcd/txn/whole.py": "transaction batch",
}

MAY_BE_RETIRED = re.compile(rf"(?i:{'|'.join(RETIRED_PARTS)})|\b(?:{'|'.join(RETIRED_NAMES)})\b")
"""A text in which this is not found needs no parser."""

LOG_METHODS = {"debug", "info", "warning", "error", "critical", "exception", "say", "log"}


def files() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def named(tree: ast.AST, *, is_test: bool) -> Iterator[tuple[int, str]]:
    """Yield each identifier that a file defines or uses, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not (is_test and node.name.startswith("test_")):
                yield node.lineno, node.name
        elif isinstance(node, ast.ClassDef):
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


def retired(name: str) -> list[str]:
    found = [f"{word} -> {RETIRED_PARTS[word]}" for word in sorted(parts(name) & RETIRED_PARTS.keys())]
    return [*found, *([f"{name} -> {RETIRED_NAMES[name]}"] if name in RETIRED_NAMES else [])]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_identifier_is_a_retired_word(path: Path) -> None:
    if path == Path(__file__):
        return
    text = path.read_text()
    if not MAY_BE_RETIRED.search(text):
        return
    is_test = path.name.startswith("test_")
    found = [
        f"line {line}: {name}: {what}"
        for line, name in named(ast.parse(text), is_test=is_test)
        for what in retired(name)
    ]
    assert found == []


def test_no_file_is_named_by_a_retired_word() -> None:
    assert [str(path.relative_to(ROOT)) for path in files() if retired(path.stem)] == []
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
    ],
)
def test_a_retired_word_is_found_as_a_part_of_a_name(name: str, is_retired: bool) -> None:
    assert bool(retired(name)) is is_retired
