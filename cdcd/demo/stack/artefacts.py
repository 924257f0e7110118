"""The cache of server artefacts: fetch once, verify at each use.

In: an `Artefact` that can fill an empty folder and prove that the result works.  Out: the folder's path.
Layout: `<cache>/<name>/` is the artefact, `<cache>/<name>.manifest` lists its files with size and sha256.
Invariant: a folder that equals its manifest is complete. An artefact is fetched under a temporary name and probed by
running it, its manifest is written, then the folder is renamed; a folder that differs is deleted and fetched again.
Two processes never fetch the same artefact at once (a lock file that the kernel unlocks when its holder ends).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cdcd.errors import StackError


@dataclass(frozen=True, slots=True)
class Artefact:
    """Something to fetch: `fill` writes it into an empty folder, `probe` runs it and raises if it fails."""

    name: str
    fill: Callable[[Path], None]
    probe: Callable[[Path], None]


def user_cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/cdcd`, or `~/.cache/cdcd`."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "cdcd"


class Cache:
    """Artefacts in one folder. `get` is safe to call from several processes at once."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or user_cache_folder()
        self._verified: dict[str, Path] = {}

    def get(self, artefact: Artefact) -> Path:
        """Return the artefact's folder; fetch the artefact if it is missing or damaged."""
        if artefact.name not in self._verified:
            self.root.mkdir(parents=True, exist_ok=True)
            with locked(self.root / f"{artefact.name}.lock"):
                self._verified[artefact.name] = self._verified_or_fetched(artefact)
        return self._verified[artefact.name]

    def _verified_or_fetched(self, artefact: Artefact) -> Path:
        folder = self.root / artefact.name
        manifest = self.root / f"{artefact.name}.manifest"
        if _intact(folder, manifest):
            return folder
        manifest.unlink(missing_ok=True)
        if folder.exists():
            shutil.rmtree(folder)
        workspace = Path(tempfile.mkdtemp(prefix=f".{artefact.name}.", dir=self.root))
        try:
            filled = workspace / artefact.name
            filled.mkdir()
            artefact.fill(filled)
            artefact.probe(filled)
            _write_manifest(filled, workspace / "manifest")
            filled.rename(folder)
            (workspace / "manifest").rename(manifest)
        finally:
            shutil.rmtree(workspace, ignore_errors=True)
        return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which the kernel releases when its holder ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def describe(folder: Path) -> dict[str, str]:
    """Return every file of a folder by relative path: `sha256:size:digest`, or `link:target`."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[relative] = f"link:{os.readlink(path)}"
        elif path.is_file():
            found[relative] = f"sha256:{path.stat().st_size}:{sha256_of(path)}"
    return found


def sha256_of(path: Path) -> str:
    """Return a file's sha256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_manifest(folder: Path, path: Path) -> None:
    files = describe(folder)
    if not files:
        raise StackError("an artefact is empty after the fetch", artefact=folder.name)
    path.write_text(json.dumps(files, indent=0, sort_keys=True))


def _intact(folder: Path, manifest: Path) -> bool:
    if not (folder.is_dir() and manifest.is_file()):
        return False
    try:
        expected = json.loads(manifest.read_text())
    except ValueError:
        return False
    return bool(expected == describe(folder))
