"""Child processes of the stack: a wait notices their end, and a stop also ends their own children."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cdcd.demo.stack.ports import accepts_connections, free_port
from cdcd.demo.stack.process import ServerProcess
from cdcd.errors import StackError


def child(tmp_path: Path, code: str) -> ServerProcess:
    return ServerProcess("the child", [sys.executable, "-c", code], log=tmp_path / "log", cwd=tmp_path)


def test_an_early_end_is_reported_with_the_last_lines(tmp_path: Path) -> None:
    process = child(tmp_path, "print('no such setting'); raise SystemExit(3)")
    with pytest.raises(StackError, match="ended while starting:\nno such setting"):
        process.wait_until(lambda: False)


def test_waiting_has_a_deadline(tmp_path: Path) -> None:
    process = child(tmp_path, "import signal; signal.pause()")
    with pytest.raises(StackError, match=r"not ready after 0\.1 s"):
        process.wait_until(lambda: False, deadline_s=0.1)
    process.kill()
    assert not process.alive


def test_a_child_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    process = child(
        tmp_path,
        "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()",
    )
    process.wait_until(lambda: "deaf" in process.output())
    process.stop(timeout_s=0.1)
    assert not process.alive


def test_a_child_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    started: list[ServerProcess] = []
    thread = threading.Thread(target=lambda: started.append(child(tmp_path, "import signal; signal.pause()")))
    thread.start()
    thread.join()
    assert not started[0].wait(0.3)
    started[0].kill()


def test_a_child_is_out_of_reach_of_the_terminals_ctrl_c(tmp_path: Path) -> None:
    process = child(tmp_path, "import signal; signal.pause()")
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    process.kill()


def test_free_ports_are_free_and_never_given_twice() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert not any(map(accepts_connections, ports))


def test_a_given_port_is_held_against_other_processes_but_not_against_its_server() -> None:
    port = free_port()
    asks = f"import cdcd.demo.stack.ports as p; p.random.randrange = lambda *_: {port}; p.free_port()"
    for _ in range(2):  # also while the server is down
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            assert accepts_connections(port)
        asked = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=False)
        assert "no free port found" in asked.stderr
