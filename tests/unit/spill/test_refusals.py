"""Failures of the spill folder: the daemon reports one clear error for each; the kernel causes most of them.

A removed segment is lost and its transaction is sent again; any other failure waits for an operator.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcd.errors import Retry, SpillError, SpillFull, SpillLost
from cdcd.spill import folder as folder_module
from cdcd.spill.folder import Folder, Segment
from tests.unit.spill.test_folder import OWN
from tests.unit.spill.test_store import new_pool
from tests.unit.txn import wire

NOBODY = 65534


@contextlib.contextmanager
def as_somebody() -> Iterator[None]:
    """Run as nobody, because root bypasses permissions."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.close()


def written(folder: Folder, data: bytes = b"abc") -> Segment:
    segment = folder.new_segment()
    folder.append(segment, data)
    return segment


def test_a_folder_without_permission_is_refused_at_once(tmp_path: Path) -> None:
    """EACCES when a session opens the folder."""
    tmp_path.chmod(0o555)
    with as_somebody(), pytest.raises(SpillError, match=r"opening .*Permission denied") as caught:
        Folder(tmp_path / "made")
    assert caught.value.context["cause"] == "EACCES"
    assert caught.value.retry is Retry.OPERATOR


def test_permission_that_is_taken_away_meanwhile_leaves_what_was_written(
    tmp_path: Path, folder: Folder
) -> None:
    """EACCES while transactions are open: a new segment is refused, and the previous one is complete."""
    segment = written(folder)
    (tmp_path / OWN).chmod(0o500)
    with as_somebody(), pytest.raises(SpillError, match="mode 0700") as caught:
        written(folder)
    assert caught.value.context["cause"] == "EACCES"
    assert caught.value.retry is Retry.OPERATOR
    (tmp_path / OWN).chmod(0o700)
    with folder.reader(segment) as file:
        assert file.read() == b"abc"


def test_a_folder_that_is_removed_is_lost_and_the_next_session_makes_it_anew(tmp_path: Path) -> None:
    """As a cleaner of temporary files does."""
    folder = Folder(tmp_path)
    segment = written(folder)
    shutil.rmtree(tmp_path / OWN)
    for doing in (
        lambda: written(folder),
        lambda: folder.append(segment, b"d"),
        lambda: folder.reader(segment),
    ):
        with pytest.raises(SpillLost, match="CDCD-SPILL-LOST") as caught:
            doing()
        assert caught.value.context["cause"] == "ENOENT"
        assert caught.value.retry is Retry.AUTO
    folder.remove(segment)
    folder.close()
    following = Folder(tmp_path)
    written(following)
    following.close()


def test_one_segment_that_is_removed_is_lost_when_it_is_replayed(tmp_path: Path) -> None:
    pool, _ = new_pool(tmp_path, segment_bytes=1)
    store = pool.new_store()
    for value in "ab":
        store.append(wire.rows(value, xid=1))
        pool.spill_largest()
    max(tmp_path.glob("cdcd-spill-*/*.spill")).unlink()
    with pytest.raises(SpillLost):
        list(store.replay())
    pool.close()


def test_a_disk_that_cannot_be_read_is_an_error_with_its_cause(folder: Folder) -> None:
    """EIO from the kernel: /proc/self/mem cannot be read at offset 0."""
    own, folder._folder = folder._folder, os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with folder.reader(Segment("mem", 10)) as file, pytest.raises(OSError) as refused:
            file.read(1)
        assert refused.value.errno == errno.EIO
        with pytest.raises(SpillError, match="Input/output error") as caught:
            folder.append(Segment("mem", 10), b"x")
    finally:
        os.close(folder._folder)
        folder._folder = own
    assert caught.value.context["cause"] == "EIO"
    assert caught.value.retry is Retry.OPERATOR


def test_a_replay_names_what_the_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO in the middle of a replay."""
    pool, _ = new_pool(tmp_path)
    store = pool.new_store()
    store.append(wire.rows("secret", xid=1))
    pool.spill_largest()
    memory = open("/proc/self/mem", "rb", 1 << 10)  # noqa: SIM115 - the replay closes it
    monkeypatch.setattr(pool, "reader", lambda _segment: memory)
    with pytest.raises(SpillError, match="reading a segment back failed: Input/output error") as caught:
        list(store.replay())
    assert "secret" not in str(caught.value)
    monkeypatch.undo()
    pool.close()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.EPERM])
def test_what_a_disk_refuses_to_write_halts_and_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Only root can make a file system read-only, so the test replaces the write function."""

    def refuse(_file: int, _data: bytes) -> None:
        raise OSError(number, os.strerror(number))

    pool, _ = new_pool(tmp_path)
    store = pool.new_store()
    item = wire.rows("secret", xid=1)
    store.append(item)
    monkeypatch.setattr(folder_module, "_write_all", refuse)
    with pytest.raises(SpillError, match=os.strerror(number)) as caught:
        pool.spill_largest()
    assert not isinstance(caught.value, SpillFull | SpillLost)
    assert caught.value.retry is Retry.OPERATOR
    assert caught.value.context["cause"] == errno.errorcode[number]
    assert "secret" not in str(caught.value)
    assert list(store.replay()) == [item]
    pool.close()
