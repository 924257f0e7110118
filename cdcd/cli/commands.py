"""The commands: each loads the configuration, calls a package and prints the result.

Comes in: parsed arguments.  Goes out: an exit status.
Invariant: the configuration is loaded, and refused, before anything connects.
Must not: catch errors; `cdcd.cli.main` turns them into lines and a status.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from cdcd.cli.output import ascii_escapes, say
from cdcd.config import LoadedConfig, load
from cdcd.errors import EXIT_FAILURE, EXIT_OK
from cdcd.errors.commands import typeable
from cdcd.redaction import escape, strike

_DEMO_EXTRA = "the demo needs packages: install cdcd with its extra `demo`"
_NO_CONFIG = 2  # argparse's status for a usage error


def run_daemon(options: argparse.Namespace) -> int:
    """Run the daemon until a signal stops it, also while its modules are still being imported."""
    config = _loaded(options).config
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_at_once)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a start checks everything anyway
    from cdcd.process.main import run

    return run(config)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    """Exit immediately: nothing has been started yet."""
    os._exit(EXIT_OK)


def _check(options: argparse.Namespace) -> int:
    config = _loaded(options).config
    from cdcd.cli.check import as_text, check, has_failed
    from cdcd.cli.command_log import logged

    with logged(config, "warning"):
        findings = check(config)
    if options.json:
        fields = ("level", "subject", "message", "hint", "code")
        found = [{name: strike(typeable(getattr(finding, name))) for name in fields} for finding in findings]
        print(ascii_escapes(json.dumps(found, indent=2)))
    else:
        print(as_text(findings))
    return EXIT_FAILURE if has_failed(findings) else EXIT_OK


def _init(options: argparse.Namespace) -> int:
    config = _loaded(options).config
    from cdcd.cli.command_log import logged
    from cdcd.cli.init import init, plan

    with logged(config, "warning"):
        planned, steps = (plan(config), []) if options.dry_run else ([], init(config))
    if options.dry_run:
        say(planned)
        return EXIT_OK
    say(step.text for step in steps)
    return EXIT_OK if all(step.is_done for step in steps) else EXIT_FAILURE


def _config(options: argparse.Namespace) -> int:
    from cdcd.config.sample import effective_yaml, json_schema, sample_yaml

    texts: dict[str, Callable[[], str]] = {
        "sample": sample_yaml,
        "schema": json_schema,
        "show": lambda: "\n".join(map(escape, effective_yaml(_loaded(options)).split("\n"))),
    }
    sys.stdout.write(texts[options.action]())
    return EXIT_OK


def _resume(options: argparse.Namespace) -> int:
    config = _loaded(options).config
    from cdcd.cli.command_log import logged
    from cdcd.cli.resume import accept_gap, accept_topics, look_again

    is_dry, is_all = options.dry_run, not options.accept_gap
    with logged(config):
        if options.accept_topic:
            say(accept_topics(config, options.accept_topic, is_dry=is_dry, is_all=is_all))
        elif is_all:
            say(look_again(config, is_dry=is_dry))
        if options.accept_gap:
            say(accept_gap(config, is_dry=is_dry))
    return EXIT_OK


def _resnapshot(options: argparse.Namespace) -> int:
    config = _loaded(options).config
    from cdcd.cli.command_log import logged
    from cdcd.cli.resume import resnapshot

    with logged(config):
        lines = resnapshot(config, is_dry=options.dry_run)
    say(lines)
    return EXIT_OK


def _snapshot(options: argparse.Namespace) -> int:
    config = _loaded(options).config
    from cdcd.cli.command_log import logged
    from cdcd.cli.snapshot import execute, show, watch

    with logged(config, "warning"):
        if options.action == "status":
            return (watch if options.watch else show)(config, is_json=options.output == "json")
        starts = {}
        if options.action == "start":
            flags = {name: getattr(options, name) for name in ("recopy", "is_all", "is_blocking", "compare")}
            starts = {"where": options.where, **flags}
        say(execute(config, options.action, options.tables, **starts))
    return EXIT_OK


def _wait(options: argparse.Namespace) -> int:
    config = _loaded(options).config
    from cdcd.cli.command_log import logged
    from cdcd.cli.wait import wait_durable, wait_mirrored

    with logged(config, "warning"):
        durable = wait_durable(config, options.lsn, options.timeout_s)
        say([durable.line])
        if options.mirror is not None:
            asked = (options.mirror, dict(options.target_option), options.lsn, options.timeout_s)
            say([wait_mirrored(*asked, slot=config.source.slot.name, durable=durable)])
    return EXIT_OK


def _verify(options: argparse.Namespace) -> int:
    config = _loaded(options).config
    from cdcd.cli.command_log import logged
    from cdcd.cli.verify import Request, verify

    request = Request(
        tables=tuple(options.tables),
        percent=options.sample,
        window=options.window,
        rate=options.rate,
        timeout_s=options.timeout_s,
        most_rows=options.limit,
        shows_keys=options.show_keys,
        is_json=options.output == "json",
        state=options.state,
        metrics=options.metrics_file,
        mirror=options.mirror,
        mirror_limit_s=options.mirror_limit_s,
        target_options=dict(options.target_option),
    )
    with logged(config, "warning"):
        return verify(config, options.config, request)


def _drop_slot(options: argparse.Namespace) -> int:
    config = _loaded(options).config
    from cdcd.cli.command_log import logged
    from cdcd.cli.drop_slot import drop

    with logged(config):
        lines = drop(config, is_dry=options.dry_run)
    say(lines)
    return EXIT_OK


def _capture(options: argparse.Namespace) -> int:
    config = _loaded(options).config
    from cdcd.cli.capture import run
    from cdcd.cli.command_log import logged

    with logged(config, "warning"):
        return run(config, options.output, seconds=options.seconds, messages=options.messages)


def _decode(options: argparse.Namespace) -> int:
    from cdcd.cli.decode import run

    return run(options)


def _demo(options: argparse.Namespace) -> int:
    try:
        demo = importlib.import_module("cdcd.demo.run")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "cdcd":
            raise
        print(f"cdcd: no module {error.name}; {_DEMO_EXTRA}", file=sys.stderr)
        return EXIT_FAILURE
    status: int = demo.main(options.arguments)
    return status


def _loaded(options: argparse.Namespace) -> LoadedConfig:
    if options.config is None:
        print("cdcd: --config FILE is required", file=sys.stderr)
        raise SystemExit(_NO_CONFIG)
    return load(options.config, os.environ)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "check": _check,
    "init": _init,
    "config": _config,
    "resume": _resume,
    "resnapshot": _resnapshot,
    "snapshot": _snapshot,
    "wait": _wait,
    "verify": _verify,
    "drop-slot": _drop_slot,
    "capture": _capture,
    "decode": _decode,
    "demo": _demo,
}
