"""The `cdcd` command as a process: its standard error, exit status, imports and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cdcd.config.sample import sample_yaml
from tests.support.nightly import nightly, nightly_except
from tests.unit.config.cases import CASES, Wrong


def cdcd(
    *words: str, folder: Path, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("CDCD_")}
    return subprocess.run(
        [sys.executable, "-m", "cdcd", *words],
        cwd=folder,
        env=others | (environ or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


COMMANDS = ([], ["check"], ["init", "--dry-run"], ["config", "show"])
WRONG = ("several", "tab", "password file missing", "word in a variable")


@pytest.mark.parametrize(
    ("words", "case"),
    nightly_except(
        [
            pytest.param(words, case, id=f"{' '.join(words) or 'daemon'}: {case.name}")
            for words in COMMANDS
            for case in CASES
            if case.name in WRONG
        ],
        "daemon: several",
        "check: password file missing",
    ),
)
def test_a_wrong_configuration_ends_with_78_and_only_its_lines(
    words: list[str], case: Wrong, tmp_path: Path
) -> None:
    (tmp_path / "prod.yaml").write_text(case.text)
    ended = cdcd(*words, "--config", "prod.yaml", folder=tmp_path, environ=case.environ)
    assert ended.stderr.splitlines() == list(case.lines)
    assert (ended.returncode, ended.stdout) == (78, "")


def test_loading_a_configuration_imports_no_client_library(tmp_path: Path) -> None:
    heavy = ("psycopg2", "confluent_kafka", "prometheus_client", "aiohttp", "pyspark")
    script = f"import sys, cdcd.cli, cdcd.config; print([name for name in {heavy!r} if name in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


UNCAUGHT = """
import sys
from cdcd.cli import commands, main
from cdcd.redaction import add_secret
def failing(options):
    add_secret("canary-5f3a91")
    raise RuntimeError("no\\n\x1b[31m canary-5f3a91 postgresql://u:canary@h/d")
commands.COMMANDS["check"] = failing
sys.exit(main(["check", "--config", "prod.yaml"]))
"""


def test_an_uncaught_error_shows_no_secret(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", UNCAUGHT], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("\\x1b[31m *** postgresql://u:***@h/d")
    assert "canary" not in ended.stderr
    assert ended.stderr.replace("\n", "").isprintable()


LOADING = """
import sys
from cdcd.cli import main
class Held:
    def find_spec(self, name, *_):
        if name == "cdcd.process.main":
            print("loading", flush=True)
            sys.stdin.read()
sys.meta_path.insert(0, Held())
main()
"""


@pytest.mark.parametrize(
    ("sent", "status"),
    [nightly((signal.SIGTERM,), 0), ((signal.SIGINT,), 0), ((signal.SIGHUP, signal.SIGTERM), 0)],
)
def test_a_signal_during_the_imports_ends_the_process_normally(
    tmp_path: Path, sent: tuple[signal.Signals, ...], status: int
) -> None:
    """The process has not started any work by then."""
    path = tmp_path / "cdcd.yaml"
    path.write_text(sample_yaml())
    with subprocess.Popen(
        [sys.executable, "-c", LOADING, "--config", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "CDCD_NAME": "shop"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"
        for number in sent:
            process.send_signal(number)
        assert process.wait(120) == status
