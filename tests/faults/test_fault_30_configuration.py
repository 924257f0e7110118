"""Fault 30: an invalid configuration ends the process, with the same messages as `cdcd check`.

tests/unit/config has the table of all errors; these tests cover the output that a user sees.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cdcd.errors import EXIT_CONFIG
from tests.support.daemon import Daemon
from tests.support.nightly import nightly

USABLE = {
    "dsn": "postgresql://nobody@127.0.0.1:1/shop",
    "bootstrap": "127.0.0.1:1",
    "registry_url": "http://127.0.0.1:1",
}


def run_cdcd(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run cdcd with the daemon's configuration."""
    command = [sys.executable, "-m", "cdcd", *arguments, "--config", str(daemon.config_path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        nightly("source.dns", "postgresql://x/y"),
        nightly("source.slot.name", "Upper"),
        nightly("source.password_file", "/nowhere/secret"),
        nightly("sink.delivery", "twice"),
        nightly("sink.properties.acks", "1"),
        ("sink.topics.template", "{name}.{table}"),
        nightly("buffer.memory", "much"),
        nightly("format.overrides", [{"table": "(", "tombstones": False}]),
        nightly("registry.url", "ftp://registry"),
        nightly("admin.port", 70000),
    ],
)
def test_one_line_names_the_key_and_check_says_the_same(tmp_path: Path, path: str, value: Any) -> None:
    daemon = Daemon(tmp_path, "shop", **USABLE)
    section, *keys = path.split(".")
    mapping = daemon.config.setdefault(section, {})
    for key in keys[:-1]:
        mapping = mapping.setdefault(key, {})
    mapping[keys[-1]] = value
    ran, checked = run_cdcd(daemon), run_cdcd(daemon, "check")
    assert ran.returncode == checked.returncode == EXIT_CONFIG
    assert ran.stderr == checked.stderr
    (line,) = ran.stderr.splitlines()
    assert line.startswith(path)
    assert "Traceback" not in line


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "shop", **USABLE)
    daemon.config["source"]["dns"] = "x"
    daemon.config["sink"]["delivery"] = "twice"
    daemon.config["unheard_of"] = 1
    ran = run_cdcd(daemon)
    assert ran.returncode == EXIT_CONFIG
    assert len(ran.stderr.splitlines()) == 3
