"""The commands of the doc pages run unchanged, against real servers: from the sample to the slot's end."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer, programs_from_wheel
from cdcd.demo.stack.registry import SchemaRegistry
from tests.support.pages import ROOT, blocks
from tests.support.stack import confirmed_position, run_script
from tests.support.topics import new_name

START, CONFIGURE, OPERATE, GONE = (
    ROOT / "docs" / f"{page}.md" for page in ("getting-started", "configure", "operate", "slot-gone")
)
DEADLINE_S = 120


BY_OTHERS = ("make demo ", "pip install .")
"""test_demo_run.py runs the demo; tests/unit/test_blocks.py parses the arguments of its lines; `make` runs pip."""


class Shell:
    """A folder with a configuration, and a shell in it that finds `cdcd`."""

    def __init__(self, folder: Path, tree: dict[str, Any]) -> None:
        self.folder, self.tree = folder, {**tree, "admin": {"port": free_port()}}
        program = folder / "bin" / "cdcd"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cdcd "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.environment = {
            **os.environ,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self.daemon: subprocess.Popen[bytes] | None = None
        self.read: set[str] = set()

    def block(self, page: Path, begins: str) -> str:
        """Return the page's block that starts with this text."""
        (found,) = [one.text for one in blocks(page) if one.language == "sh" and one.text.startswith(begins)]
        self.read.add(found)
        return found

    def configure(self) -> None:
        (self.folder / "cdcd.yaml").write_text(yaml.safe_dump(self.tree))

    def run(self, text: str) -> str:
        """Run a block; each command has to end with status 0."""
        command = ["bash", "-ec", self._here(text)]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}{self.log()}"
        return done.stdout

    def start(self, text: str) -> None:
        """Start a command in the background."""
        with (self.folder / "log").open("ab") as log:
            command = ["bash", "-ec", f"exec {self._here(text)}"]
            self.daemon = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )

    def stop(self) -> int:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(DEADLINE_S)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text()[-4000:] if path.exists() else ""

    def _here(self, text: str) -> str:
        return text.replace("localhost:8080", f"localhost:{self.tree['admin']['port']}")


@pytest.fixture
def shell(
    tmp_path: Path, postgres: PostgresServer, database: str, kafka: KafkaBroker, registry: SchemaRegistry
) -> Iterator[Shell]:
    name = new_name("shop").replace("-", "_")
    run_script(
        postgres.dsn(database),
        "CREATE TABLE public.orders (id int PRIMARY KEY)",
        "INSERT INTO public.orders SELECT generate_series(1, 10)",
        f'CREATE PUBLICATION "cdcd_{name}" FOR TABLE public.orders',
    )
    made = Shell(
        tmp_path,
        {
            "name": name,
            "source": {"dsn": postgres.dsn(database)},
            "sink": {"bootstrap_servers": kafka.bootstrap, "topics": {"replication_factor": 1}},
            "registry": {"url": registry.url},
        },
    )
    yield made
    if made.daemon is not None and made.daemon.poll() is None:
        made.daemon.kill()
        made.daemon.wait()


def test_the_commands_of_the_pages_run(shell: Shell, postgres: PostgresServer) -> None:
    """Each shell block of the three pages runs, except those of `BY_OTHERS`."""
    shell.run(shell.block(START, "cdcd config sample"))
    shell.configure()
    assert "# default" in shell.run(shell.block(CONFIGURE, "cdcd config show"))
    shell.run(shell.block(START, "cdcd check"))
    shell.run(shell.block(START, "cdcd init"))

    shell.start(shell.block(START, "cdcd --config"))
    shell.run(shell.block(START, "until curl"))
    assert "cdcd_build_info" in shell.run(shell.block(OPERATE, "curl"))
    shell.run(shell.block(OPERATE, "cdcd resume"))
    shell.run(shell.block(OPERATE, "cdcd capture").replace("--seconds 60", "--seconds 1"))
    create, rest = peeking(shell)
    shell.run(create)
    run_script(shell.tree["source"]["dsn"], "INSERT INTO public.orders VALUES (11)")
    assert "INSERT" in shell.run(rest).upper()
    assert shell.stop() == 0

    again, *_ = shell.block(GONE, "cdcd resnapshot").splitlines()
    shell.run(again)
    shell.run(shell.block(GONE, "cdcd drop-slot"))
    assert confirmed_position(postgres, f"cdcd_{shell.tree['name']}") is None
    pages = {one.text for page in (START, CONFIGURE, OPERATE) for one in blocks(page) if one.language == "sh"}
    assert [text for text in pages - shell.read if not text.startswith(BY_OTHERS)] == []


def peeking(shell: Shell) -> tuple[str, str]:
    """Return the block with psql, for this test's database: the command that creates the slot, and the rest."""
    database, name = shell.tree["source"]["dsn"], shell.tree["name"]
    text = (
        shell.block(OPERATE, "psql")
        .replace("'cdcd_shop'", f"'cdcd_{name}'")
        .replace("'peek'", f"'peek_{name}'")
    )
    psql = programs_from_wheel(18) / "bin" / "psql"
    named = re.sub(
        r"^psql(?= )", lambda _: f"{shlex.quote(str(psql))} -d {shlex.quote(database)}", text, flags=re.M
    )
    create, _, rest = named.partition("\n")
    assert "pg_create_logical_replication_slot" in create
    return create, rest
