"""A proxy of a real registry: it forwards requests or answers them itself, and may require authentication.

In: the registry's URL.  Out: a URL to use instead, http or https; the requests, with method and path.
Invariant: a forwarded request differs only in its host. With `wants_certificate` the TLS server accepts only clients
with a certificate of its own authority.
"""

from __future__ import annotations

import datetime
import http.client
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cdcd.demo.stack.ports import free_port


@dataclass
class Asked:
    """One request to the proxy."""

    method: str
    path: str
    authorization: str | None


class Door:
    """The proxy. Use as a context manager. Its attributes may be changed at any time."""

    def __init__(
        self, registry_url: str, folder: Path | None = None, *, wants_certificate: bool = False
    ) -> None:
        self.registry_url = registry_url
        self.status: int | None = None
        """The HTTP status to answer in place of the registry; None: forward the request."""
        self.is_answered_for: Callable[[Asked], bool] = lambda _asked: True
        """Selects the requests that `status` applies to."""
        self.delay_s = 0.0
        self.opens_to: str | None = None
        """The required Authorization header; None: not required."""
        self.asked: list[Asked] = []
        self.port = free_port()
        self._context = None if folder is None else _server_context(folder, wants_certificate)
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """The registry's URL with the proxy's address."""
        scheme = "http" if self._context is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}{urlsplit(self.registry_url).path}"

    def open(self) -> Door:
        """Start listening."""
        door = self

        class _Handler(_Requests):
            pass

        _Handler.door = door
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _Handler)
        if self._context is not None:
            self._server.socket = self._context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def shut(self) -> None:
        """Stop listening: connections are refused."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> Door:
        return self.open()

    def __exit__(self, *_exc: object) -> None:
        self.shut()


class _Requests(BaseHTTPRequestHandler):
    door: Door
    timeout = 30

    def _answer(self) -> None:
        door = self.door
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = Asked(self.command, self.path, self.headers.get("Authorization"))
        door.asked.append(asked)
        time.sleep(door.delay_s)
        if door.opens_to is not None and asked.authorization != door.opens_to:
            self._send(401, b'{"error_code":40101,"message":"who are you?"}')
        elif door.status is not None and door.is_answered_for(asked):
            self._send(door.status, b'{"error_code":%d,"message":"no"}' % (door.status * 100 + 1))
        else:
            self._send(*self._asked_of_registry(body))

    def _asked_of_registry(self, body: bytes) -> tuple[int, bytes]:
        target = urlsplit(self.door.registry_url)
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=30)
        headers = {name: self.headers[name] for name in ("Content-Type", "Accept") if name in self.headers}
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 502, b"{}"
        finally:
            connection.close()

    def _send(self, status: int, body: bytes) -> None:
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


# --- certificates --------------------------------------------------------------------------------------------


def _server_context(folder: Path, wants_certificate: bool) -> ssl.SSLContext:
    make_certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    if wants_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / "ca.crt")
    return context


def make_certificates(folder: Path, password: bytes = b"of the key") -> None:
    """Create ca.crt, server.crt and .key for 127.0.0.1, client.crt and .key (encrypted), stranger.crt and .key."""
    authority, signed = _issue("the authority", None)
    _write(folder / "ca", authority, signed)
    server, certificate = _issue("the server", (authority, signed))
    _write(folder / "server", server, certificate)
    client, certificate = _issue("cdcd", (authority, signed))
    _write(folder / "client", client, certificate, password)
    _write(folder / "stranger", *_issue("a stranger", None))


def _issue(name: str, issuer: tuple[Any, x509.Certificate] | None) -> tuple[Any, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signing_key, issuer_name = (key, subject) if issuer is None else (issuer[0], issuer[1].subject)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    return key, made


def _write(path: Path, key: Any, certificate: x509.Certificate, password: bytes | None = None) -> None:
    locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    path.with_suffix(".key").write_bytes(pem)
    path.with_suffix(".crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
