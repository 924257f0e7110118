"""The body of a request to the admin port, whose client may go away or send something else than HTTP.

In: the reading of a body.  Out: 400 instead of an error of the connection, which is not a failure of a page.
Must not: catch an error of a page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["reading_body"]


@contextlib.contextmanager
def reading_body() -> Iterator[None]:
    """Raise HTTPBadRequest where the body of a request cannot be read to its end."""
    try:
        yield
    except (ConnectionError, HttpProcessingError, ClientPayloadError):
        raise web.HTTPBadRequest(text="the request's body is incomplete\n") from None
