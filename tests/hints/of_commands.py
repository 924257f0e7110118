"""Situations of the configuration and of commands, which print the error themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from tests.hints.situation import World, situation


@situation("CDCD-CONFIG", "an unknown option", "did you mean", is_well_after=True)
def unknown_key(w: World) -> Iterator[str]:
    w.daemon.config["sorce"] = w.daemon.config.pop("source")
    ended = w.daemon.start().wait_exit()
    assert ended == 78
    yield "CDCD-CONFIG: " + w.daemon.log().replace(" - ", " -> ")
    w.daemon.config["source"] = w.daemon.config.pop("sorce")
    w.daemon.log_path.unlink()
    w.start()


@situation("CDCD-RESUME-REFUSED", "a gap is accepted while a daemon streams", "stop the daemon first")
def accepted_while_it_streams(w: World) -> Iterator[str]:
    w.stream()
    yield w.command("resume", "--accept-gap").stderr
    w.daemon.stop()
    ran = w.command("resume", "--accept-gap")
    assert "start cdcd" in ran.stderr, "there is no gap to accept"
    w.start()


@situation("CDCD-RESUME-REFUSED", "no daemon runs", "or start the daemon")
def nobody_answers(w: World) -> Iterator[str]:
    yield w.command("resume").stderr
    w.start()
    w.daemon.wait_state("streaming")
    assert w.command("resume").returncode == 0, "with a running daemon the command succeeds"


@situation("CDCD-RESUME-REFUSED", "nothing was written yet", "start cdcd")
def nothing_written(w: World) -> Iterator[str]:
    yield w.command("resnapshot").stderr
    w.start()


@situation("CDCD-CAPTURE", "the file is there already", "name a new file", is_well_after=False)
def file_is_there(w: World) -> Iterator[str]:
    path = w.folder / "capture"
    path.write_text("")
    yield w.command("capture", "--output", str(path), "--seconds", "0.1").stderr
    assert w.command("capture", "--output", str(path) + "2", "--seconds", "0.1").returncode == 0


@situation("CDCD-CAPTURE", "a line is not hex", "the hex of one message", is_well_after=False)
def not_hex(w: World) -> Iterator[str]:
    refused = _decoded("no hex\n").stderr
    yield refused
    assert _decoded("49000040010000\n").stderr != refused


def _decoded(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cdcd", "decode"], input=text, capture_output=True, text=True, timeout=60
    )
