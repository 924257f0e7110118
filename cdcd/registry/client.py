"""A client for a registry's properties, and what its errors are.

In: the properties that `settings.client_properties` returns; an error that the client raised.  Out: a `rest.Client`;
whether the error is a failure of the network.
Must not: interpret a reply. The daemon (`confluent`) and the readers of its topics (`cdcd.spark`) do that in their
own words, with the same clients.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping

from cdcd.registry.rest import Client, RestClient, is_plain

__all__ = ["is_transport", "new_client"]


def new_client(properties: Mapping[str, object]) -> Client:
    """Return a client. Raises TypeError or ValueError for refused properties, OSError for a file that they name."""
    if is_plain(properties):
        return RestClient(properties)
    from cdcd.registry.confluent_client import ConfluentClient  # with OAuth, 17 MiB

    return ConfluentClient(properties)


def is_transport(error: Exception) -> bool:
    """Whether it is a network failure; Confluent's client does not translate its HTTP library's exceptions."""
    is_ours = isinstance(error, OSError | http.client.HTTPException)
    return is_ours or type(error).__module__.partition(".")[0] in {"httpx", "httpx2"}
