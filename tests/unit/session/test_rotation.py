"""When a file counts as changed, also in a folder or behind a symbolic link."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcd.session.rotation import Fingerprints, changes, fingerprints

CERTIFICATE, KEY = Path("/tls/tls.crt"), Path("/tls/tls.key")
OLD: Fingerprints = {CERTIFICATE: b"1", KEY: b"1"}
HALF: Fingerprints = {CERTIFICATE: b"2", KEY: b"1"}
NEW: Fingerprints = {CERTIFICATE: b"2", KEY: b"2"}


@pytest.mark.parametrize(
    ("known", "before", "now", "expected"),
    [
        pytest.param(OLD, OLD, OLD, (), id="unchanged"),
        pytest.param(OLD, OLD, NEW, (), id="seen for the first time"),
        pytest.param(OLD, NEW, NEW, (CERTIFICATE, KEY), id="settled"),
        pytest.param(OLD, HALF, NEW, (), id="the other half has just changed"),
        pytest.param(OLD, HALF, HALF, (CERTIFICATE,), id="only one half has changed"),
        pytest.param(OLD, {KEY: b"2"}, {KEY: b"2"}, (), id="a file is missing"),
        pytest.param({}, OLD, OLD, (CERTIFICATE, KEY), id="new files"),
        pytest.param(OLD, NEW, OLD, (), id="changed and back again"),
        pytest.param({}, {}, {}, (), id="no files"),
    ],
)
def test_a_change_counts_once_it_is_settled(
    known: Fingerprints, before: Fingerprints, now: Fingerprints, expected: tuple[Path, ...]
) -> None:
    assert changes(known, before, now) == expected


def test_a_link_that_is_moved_is_a_change(tmp_path: Path) -> None:
    """Kubernetes updates a mounted Secret by replacing the symbolic link to its folder."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "password").write_text(name)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "password").symlink_to("..data/password")
    file = tmp_path / "password"
    before = fingerprints([file])
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert changes(before, *[fingerprints([file])] * 2) == (file,)


def test_a_folder_is_all_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("a")
    before = fingerprints([tmp_path])
    (tmp_path / "b.pem").write_text("b")
    assert changes(before, *[fingerprints([tmp_path])] * 2) == (tmp_path,)


def test_a_file_that_cannot_be_read_has_no_fingerprint(tmp_path: Path) -> None:
    assert fingerprints([tmp_path / "probe"]) == {}
