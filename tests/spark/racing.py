"""A writer of manifests that races with others: `python -m tests.spark.racing TARGET ROUNDS [NAME=VALUE...]`.

Out: a line "ready", then, after a line on stdin, a line with the versions that this writer has published.
Invariant: each round publishes the successor of what is published at its start, or nothing.
"""

from __future__ import annotations

import json
import sys
import uuid
from dataclasses import replace

from cdcd.errors import StorageConflict
from cdcd.spark.manifest import Manifest, read_manifest, write_manifest
from cdcd.spark.storage import Storage, open_storage


def race(storage: Storage, rounds: int) -> list[int]:
    """Publish as often as possible; return the versions."""
    writer = uuid.uuid4().hex
    published = []
    for _ in range(rounds):
        found = read_manifest(storage) or Manifest("shop", 4)
        try:
            write_manifest(storage, replace(found, version=found.version + 1, writer=writer))
        except StorageConflict:
            continue
        published.append(found.version + 1)
    return published


if __name__ == "__main__":
    target, count, *pairs = sys.argv[1:]
    opened = open_storage(target, dict(one.partition("=")[::2] for one in pairs))
    print("ready", flush=True)
    input()
    print(json.dumps(race(opened, int(count))), flush=True)
