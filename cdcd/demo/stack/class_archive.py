"""Archives of the classes that a server loads (class data sharing): a JVM with one starts in about half the CPU time.

In: an artefact's jars, a Java, a function that runs the server once.  Out: flags of a JVM that uses the archive.
Layout: `<cache>/<artefact>.classes-<key>.jsa`. The key changes with the jars and the version of Java, because a JVM
refuses an archive of other jars or of another version. An archive extends that of Java's own classes: a Java that has
none gets `<cache>/java.classes-<key>.jsa`.
Invariant: an archive is complete: it is written under a temporary name, then renamed. A JVM that refuses its archive
starts without it and logs nothing about it.
Must not: raise an error. A server without an archive is slower at its start, and otherwise the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from cdcd.demo.stack.artefacts import locked
from cdcd.demo.stack.packages import run
from cdcd.errors import StackError

QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""A JVM that refuses an archive prints warnings, for some reasons errors, among the lines of its server."""
ARCHIVES_OF_A_NAME = 3
"""Older archives are deleted: they belong to jars or versions of Java that are gone."""
TRAINED_WITHIN_S = 120.0
"""A JVM writes an archive of 50 to 80 MB at its orderly end."""

_failed: set[Path] = set()
"""The archives that this process could not build; it does not try again at each start of a server."""

Train = Callable[[Sequence[str]], None]
"""Starts the server with these additional flags of the JVM, and stops it in order."""


def class_archive_flags(artefact: Path, java: str, train: Train) -> tuple[str, ...]:
    """Return the flags with which `java` uses the archive of an artefact of the cache; none without an archive.

    The first call on a machine builds the archive, once for all processes.
    """
    home = Path(java).resolve().parents[1]
    try:
        base = home / "lib" / "server" / "classes.jsa"
        extended: tuple[str, ...] = ()
        if not base.exists():
            base = _built(artefact.parent / "java", home, (), lambda path: _dump(java, path))
            extended = (f"-XX:SharedArchiveFile={base}",)
        archive = _built(
            artefact,
            home,
            (base, *sorted(artefact.rglob("*.jar"))),
            lambda path: train((*extended, f"-XX:ArchiveClassesAtExit={path}")),
        )
    except (OSError, StackError, subprocess.TimeoutExpired):  # a read-only cache, a Java before 13
        return ()
    return (f"-XX:SharedArchiveFile={archive}", *QUIET)


def _dump(java: str, path: Path) -> None:
    run([java, "-Xshare:dump", f"-XX:SharedArchiveFile={path}"], "Java could not archive its own classes")


def _built(of: Path, home: Path, sources: Sequence[Path], write: Callable[[Path], None]) -> Path:
    """Return the archive of these sources and this Java, which `write` writes if it does not exist."""
    archive = of.with_name(f"{of.name}.classes-{_key(home, sources)}.jsa")
    if archive.exists():
        return archive
    if archive in _failed:
        raise StackError("the archive of classes could not be built before", archive=archive)
    _failed.add(archive)
    with locked(of.with_name(f"{of.name}.classes.lock")):
        if not archive.exists():
            _build(archive, write)
            _remove_old(of)
    _failed.discard(archive)
    return archive


def _key(home: Path, sources: Sequence[Path]) -> str:
    """Return a name for all that a JVM compares with its archive: its own version, size and time of each file.

    The time of Java's own files is not compared: the copies of a wheel's Java in several environments share archives.
    """
    key = hashlib.sha256((home / "release").read_bytes())
    key.update(str((home / "lib" / "modules").stat().st_size).encode())
    for file in sources:
        state = file.stat()
        key.update(f"\n{file} {state.st_size} {state.st_mtime_ns}".encode())
    return key.hexdigest()[:12]


def _build(archive: Path, write: Callable[[Path], None]) -> None:
    workspace = Path(tempfile.mkdtemp(prefix=f".{archive.name}.", dir=archive.parent))
    try:
        written = workspace / archive.name
        write(written)
        if not written.exists():
            raise StackError("the JVM wrote no archive of its classes", archive=archive)
        with written.open("rb") as file:
            os.fsync(file.fileno())  # a JVM trusts the content of an archive
        written.rename(archive)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _remove_old(of: Path) -> None:
    archives = sorted(of.parent.glob(f"{of.name}.classes-*.jsa"), key=lambda path: path.stat().st_mtime)
    for old in archives[:-ARCHIVES_OF_A_NAME]:
        old.unlink(missing_ok=True)
