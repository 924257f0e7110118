"""Look from time to time whether topics and schemas are still what the records count on.

In: the session's topics, schemas and plans.  Out: an error of the tree that ends the session.
Invariant: F66: a key would go to another partition than before as soon as a topic gets more of them; F55: a registry
that was emptied gives the ids that cdcd has to other schemas.
Must not: make or alter anything.
"""

from __future__ import annotations

import asyncio

from cdcd.errors import RegistryUnavailable, SinkUnavailable
from cdcd.pipeline.plans import Plans
from cdcd.registry.confluent import Registry
from cdcd.sink.schemas import SchemaTopic
from cdcd.sink.topics import Topics
from cdcd.threads import in_thread

WATCH_INTERVAL_S = 20.0


async def watch(topics: Topics, schemas: Registry | SchemaTopic, plans: Plans) -> None:
    """Look until cancelled. Raises what has become of a topic or a schema."""
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        try:
            await in_thread(topics.verify, plans.partitions)
            await in_thread(schemas.verify_next)
        except (SinkUnavailable, RegistryUnavailable):
            continue  # who needs it meets it as well, and says so
