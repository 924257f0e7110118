"""`Daemon.get` while the daemon is killed during the request."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from tests.support.daemon import Daemon

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n{"state": 1}       '


def asked(folder: Path, server: socket.socket, content: bytes) -> Daemon:
    """Return a daemon whose port sends this answer once, then closes."""

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(content)

    daemon = Daemon(folder, "killed", dsn="", bootstrap="", registry_url="")
    daemon.port = server.getsockname()[1]
    threading.Thread(target=answer, daemon=True).start()
    return daemon


@pytest.mark.parametrize("status", [b"200 OK", b"503 No"])
@pytest.mark.parametrize("length", [0, 5, 30, len(ANSWER) - 1])
def test_an_answer_that_breaks_off_is_none(length: int, status: bytes, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        daemon = asked(tmp_path, server, ANSWER.replace(b"200 OK", status)[:length])
        assert daemon.get("/status") == (0, "")


@pytest.mark.parametrize("status", [200, 503])
def test_a_whole_answer_is_what_it_says(status: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        daemon = asked(tmp_path, server, ANSWER.replace(b"200", str(status).encode()))
        assert daemon.get("/status") == (status, '{"state": 1}       ')
