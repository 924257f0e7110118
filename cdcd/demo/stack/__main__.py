"""`python -m cdcd.demo.stack`: one Kafka broker, one PostgreSQL server and one schema registry until Ctrl-C.

In: options.  Out: one line of JSON on standard output as soon as all servers accept connections (`dsn`, `bootstrap`,
`registry_url`, `folder`, `pids`). SIGINT or SIGTERM stops the servers in order and removes the folder, unless it was
given as an option.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import threading
from pathlib import Path

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer, programs_from_npm, programs_from_wheel
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import CdcdError


def main() -> int:
    """Start the servers, print their addresses, wait for a signal, stop; return the exit status."""
    options = _options()
    asked_to_stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked_to_stop.set())
    with contextlib.ExitStack() as undo:
        folder = options.folder
        if folder is None:
            folder = make_run_folder(account=server_account())
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            print(json.dumps(_start(options, folder, undo)), flush=True)
        except CdcdError as error:
            print(error, file=sys.stderr)
            return 1
        asked_to_stop.wait()
    return 0


def _start(options: argparse.Namespace, folder: Path, undo: contextlib.ExitStack) -> dict[str, object]:
    wanted = set(options.only or ("kafka", "postgres", "registry"))
    cache = Cache()
    answer: dict[str, object] = {"folder": str(folder)}
    pids: dict[str, int | None] = {}
    if "kafka" in wanted:
        kafka = undo.enter_context(KafkaBroker(folder / "kafka", cache=cache))
        answer["bootstrap"], pids["kafka"] = kafka.bootstrap, kafka.pid
    if "postgres" in wanted:
        major = options.postgres
        programs = programs_from_wheel(major) if major in (16, 18) else programs_from_npm(major, cache)
        postgres = undo.enter_context(PostgresServer(major, programs, folder / "postgres"))
        answer["dsn"], pids["postgres"] = postgres.dsn(), postgres.pid
    if "registry" in wanted:
        registry = undo.enter_context(SchemaRegistry(folder / "registry", cache=cache))
        answer["registry_url"], pids["registry"] = registry.url, registry.pid
    return {**answer, "pids": pids}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cdcd.demo.stack", description=__doc__.splitlines()[0])
    parser.add_argument("--postgres", type=int, default=18, metavar="MAJOR", help="12 to 18 (default 18)")
    parser.add_argument("--folder", type=Path, help="the servers' folder; not removed at the end")
    parser.add_argument(
        "--only", action="append", choices=("kafka", "postgres", "registry"), help="may be repeated"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
