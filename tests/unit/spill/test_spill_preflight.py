"""The findings of `cdcd check` about the spill folder, which the check leaves unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcd.spill.folder import places
from cdcd.spill.preflight import check_folder
from cdcd.spill.settings import SpillSettings


def test_a_folder_that_can_be_used(tmp_path: Path) -> None:
    for below in (tmp_path, tmp_path / "made at the start"):
        finding = check_folder(SpillSettings(below=below, disk_bytes=1))
        assert finding.level == "ok"
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_a_warning(tmp_path: Path) -> None:
    finding = check_folder(SpillSettings(below=tmp_path, disk_bytes=1 << 60))
    assert finding.level == "warn"
    assert "lower buffer.spill" in finding.hint


@pytest.mark.parametrize("what", ["missing", "file", "open to others", "link"])
def test_a_folder_that_cannot_be_used_fails(tmp_path: Path, what: str) -> None:
    below = tmp_path
    _, own = places(tmp_path)
    if what == "missing":
        below = tmp_path / "not" / "there"
    elif what == "file":
        own.write_text("")
    elif what == "open to others":
        own.mkdir()
        own.chmod(0o755)
    else:
        own.symlink_to(tmp_path)
    finding = check_folder(SpillSettings(below=below, disk_bytes=1))
    assert finding.level == "fail"
    assert finding.hint
