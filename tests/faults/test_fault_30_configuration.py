"""Fault 30: a configuration that cannot be used ends the process, with the same words as `cdcd check`.

The table of what can be wrong is tests/unit/config; here is what a user sees of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cdcd.errors import EXIT_CONFIG
from tests.support.daemon import Daemon

USABLE = {
    "dsn": "postgresql://nobody@127.0.0.1:1/shop",
    "bootstrap": "127.0.0.1:1",
    "registry_url": "http://127.0.0.1:1",
}


def said(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    """Run cdcd with the daemon's configuration."""
    command = [sys.executable, "-m", "cdcd", *words, "--config", str(daemon.config_path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("source.dns", "postgresql://x/y"),
        ("source.slot.name", "Upper"),
        ("source.password_file", "/nowhere/secret"),
        ("sink.delivery", "twice"),
        ("sink.properties.acks", "1"),
        ("sink.topics.template", "{name}.{table}"),
        ("buffer.memory", "much"),
        ("format.overrides", [{"table": "(", "tombstones": False}]),
        ("registry.url", "ftp://registry"),
        ("admin.port", 70000),
    ],
)
def test_one_line_names_the_key_and_check_says_the_same(tmp_path: Path, path: str, value: Any) -> None:
    daemon = Daemon(tmp_path, "shop", **USABLE)
    room, *keys = path.split(".")
    under = daemon.config.setdefault(room, {})
    for key in keys[:-1]:
        under = under.setdefault(key, {})
    under[keys[-1]] = value
    ran, checked = said(daemon), said(daemon, "check")
    assert ran.returncode == checked.returncode == EXIT_CONFIG
    assert ran.stderr == checked.stderr
    (line,) = ran.stderr.splitlines()
    assert line.startswith(path)
    assert "Traceback" not in line


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "shop", **USABLE)
    daemon.config["source"]["dns"] = "x"
    daemon.config["sink"]["delivery"] = "twice"
    daemon.config["unheard_of"] = 1
    ran = said(daemon)
    assert ran.returncode == EXIT_CONFIG
    assert len(ran.stderr.splitlines()) == 3
