"""An issuer of unsigned OAuth tokens, with a subject and an expiry, for a broker that checks no signature.

In: the lifetime of a token.  Out: a token URL for clients with an id and a secret.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Issuer:
    """`given` counts the issued tokens; while `is_away`, a request gets no answer."""

    def __init__(self, lasts_s: float) -> None:
        self.given = 0
        self.is_away = False
        issuer = self

        class Asked(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if issuer.is_away:
                    self.close_connection = True
                    return
                issuer.given += 1
                body = json.dumps(issuer._answer(lasts_s)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Do not log requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Asked)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Issuer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The token endpoint."""
        return f"http://127.0.0.1:{self._server.server_port}/token"

    @staticmethod
    def _answer(lasts_s: float) -> dict[str, Any]:
        now_s = time.time()
        claims = {"sub": "bearer", "iat": now_s, "exp": now_s + lasts_s}
        parts = [base64.urlsafe_b64encode(json.dumps(one).encode()) for one in ({"alg": "none"}, claims)]
        token = ".".join(part.decode().rstrip("=") for part in parts) + "."
        return {"access_token": token, "token_type": "Bearer", "expires_in": lasts_s}
