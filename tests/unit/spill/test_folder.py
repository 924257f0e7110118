"""The owner of the spill folder and its files, and the errors of a full disk."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cdcd.errors import Retry, SpillError, SpillFull
from cdcd.spill.folder import Folder

OWN = f"cdcd-spill-{os.geteuid()}"


def names(below: Path, suffix: str = "") -> list[str]:
    return sorted(name for name in os.listdir(below / OWN) if name.endswith(suffix))


def test_folder_and_files_are_for_this_user_alone(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        folder = Folder(tmp_path / "made")
        segment = folder.new_segment()
        folder.append(segment, b"abc")
        folder.append(segment, b"def")
    finally:
        os.umask(former)
    path = tmp_path / "made" / OWN
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE((path / name).stat().st_mode) for name in os.listdir(path)} == {0o600}
    with folder.reader(segment) as file:
        assert file.read() == b"abcdef"
    folder.close()
    assert os.listdir(path) == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o701])
def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / OWN).mkdir()
    (tmp_path / OWN).chmod(mode)
    with pytest.raises(SpillError, match="not a private folder of this user"):
        Folder(tmp_path)


def test_a_link_in_place_of_the_folder_or_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / OWN).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpillError, match="opening"):
        Folder(tmp_path)
    (tmp_path / OWN).unlink()
    folder = Folder(tmp_path)
    segment = folder.new_segment()
    (tmp_path / OWN / segment.name).symlink_to(tmp_path / "target")
    with pytest.raises(SpillError):
        folder.append(segment, b"x")
    assert not (tmp_path / "target").exists()
    folder.close()


def test_a_folder_that_cannot_be_cleared_leaves_nothing_open_and_nothing_behind(tmp_path: Path) -> None:
    """Otherwise each SIGHUP of a halted daemon would leak a file descriptor."""
    Folder(tmp_path).close()
    (tmp_path / OWN / "cdcd-0123456789abcdef.lock").symlink_to("/nowhere")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SpillError, match="ELOOP"):
        Folder(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert names(tmp_path) == ["cdcd-0123456789abcdef.lock"]


def test_a_folder_that_cannot_be_made_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillError, match="CDCD-SPILL: opening"):
        Folder(tmp_path / "file" / "deeper")


def test_living_daemons_share_a_folder_and_leave_each_other_alone(tmp_path: Path) -> None:
    first, second = Folder(tmp_path), Folder(tmp_path)
    remaining, gone = first.new_segment(), second.new_segment()
    first.append(remaining, b"1")
    second.append(gone, b"2")
    third = Folder(tmp_path)
    assert third.removed == 0
    second.close()
    assert names(tmp_path, ".spill") == [remaining.name]
    first.close()
    third.close()
    assert names(tmp_path) == []


def test_what_a_killed_daemon_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    program = """
        import sys
        from pathlib import Path
        from cdcd.spill.folder import Folder
        folder = Folder(Path(sys.argv[1]))
        folder.append(folder.new_segment(), b"left behind")
        folder.append(folder.new_segment(), b"left behind")
        print("ready", flush=True)
        sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    others = ["notes.txt", "cdcd-0123456789abcdef.spill.txt", "cdcd-XYZ.lock"]
    for name in others:
        (tmp_path / OWN / name).write_text("not ours")
    orphan = "cdcd-0123456789abcdef.7.spill"  # its lock file was deleted by hand
    (tmp_path / OWN / orphan).write_text("nobody's")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(names(tmp_path, ".spill")) == 3
    folder = Folder(tmp_path)
    assert folder.removed == 3
    folder.close()
    assert names(tmp_path) == sorted(others)


def test_a_disk_without_room_leaves_the_segment_as_it_was(tmp_path: Path) -> None:
    """The kernel refuses in the middle of a write (EFBIG in place of ENOSPC); complete items stay readable."""
    folder = Folder(tmp_path)
    segment, fresh = folder.new_segment(), folder.new_segment()
    folder.append(segment, b"a" * 1000)
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, former[1]))
    try:
        with pytest.raises(SpillFull) as caught:
            folder.append(segment, b"b" * 1000)
        with pytest.raises(SpillFull):
            folder.append(fresh, b"b" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert caught.value.context["cause"] == "EFBIG"
    assert caught.value.retry is Retry.OPERATOR
    assert (tmp_path / OWN / segment.name).stat().st_size == 1000
    folder.append(segment, b"c")
    folder.append(fresh, b"d")
    with folder.reader(segment) as file:
        assert file.read() == b"a" * 1000 + b"c"
    folder.close()
