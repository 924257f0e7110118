"""The random faults: each strikes once and is over when it returns, apart from what cdcd has to do about it.

In: a world whose daemon goes through proxies, a seeded generator.  Out: whether it really struck.
Invariant: what has met nobody (a link that nobody used, a process that was not there, a pause in which nothing came)
has not struck.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg2

from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.world import World
from tests.support.doors import KafkaDoors
from tests.support.late import Api
from tests.support.proxy import Proxy
from tests.support.stack import SLOT_OWNER, confirmed_position, wal_position

WITHIN_S = 3.0


@dataclass
class Scene:
    """The world, its servers, and the links in front of them."""

    world: World
    kafka: Any
    """What has `brokers`."""
    registry: SchemaRegistry
    doors: KafkaDoors
    to_postgres: Proxy
    to_registry: Proxy
    dice: random.Random
    wal_sender_timeout_s: float | None = None
    """The server's, when it is short enough for faults that last longer."""

    @property
    def pid(self) -> int | None:
        """The daemon's process, when it runs."""
        process = self.world.daemon.process
        return process.pid if process is not None and process.poll() is None else None

    def links(self) -> list[Proxy]:
        return [self.to_postgres, self.to_registry, *self.doors.proxies]

    def link(self) -> Proxy | None:
        """One that is used just now."""
        used = [link for link in self.links() if link.open_connections]
        return self.dice.choice(used) if used else None

    def a_while(self, longest_s: float = 0.6) -> None:
        """For so long a fault lasts."""
        time.sleep(self.dice.uniform(0.02, longest_s))

    def heal(self) -> None:
        """Every server is there, and every link open."""
        for door in self.doors.late:
            door.let_through()
        for link in self.links():
            link.heal()
            link.accept()
        for broker in self.kafka.brokers:
            broker.launch()
            broker.wait_ready()


# --- the daemon ----------------------------------------------------------------------------------------------


def killed(scene: Scene) -> bool:
    """SIGKILL, and a new start."""
    if scene.pid is None:
        return False
    scene.world.daemon.kill()
    scene.world.daemon.start()
    return True


def frozen(scene: Scene) -> bool:
    """SIGSTOP for a while, in which there is more to confirm and nothing is confirmed."""
    if (pid := scene.pid) is None:
        return False
    with stopped_for_a_while(pid):
        written_lsn, confirmed_lsn = positions(scene)
        scene.a_while()
        after = positions(scene)
    return after[0] > written_lsn and after[1] == confirmed_lsn


def positions(scene: Scene) -> tuple[int, int | None]:
    """How far the server has written, and what is confirmed."""
    server = scene.world.server
    return wal_position(server), confirmed_position(server, scene.world.daemon.slot)


def frozen_for_long(scene: Scene) -> bool:
    """SIGSTOP until the server has given the stream up (F74)."""
    if (pid := scene.pid) is None:
        return False
    with stopped_for_a_while(pid):
        return walsender_gives_up(scene)


def held_for_long(scene: Scene) -> bool:
    """A link to PostgreSQL that lets nothing through until the server has given the stream up (F16, F74)."""
    scene.to_postgres.hold()
    try:
        return walsender_gives_up(scene)
    finally:
        scene.to_postgres.heal()


def walsender_gives_up(scene: Scene) -> bool:
    """Wait for it, where its timeout is short; False when nothing was streamed."""
    if scene.wal_sender_timeout_s is None or not (pid := walsender(scene)):
        return False
    end_s = time.monotonic() + 2 * scene.wal_sender_timeout_s
    while walsender(scene) == pid:
        if time.monotonic() > end_s:
            return False
        time.sleep(0.1)
    return True


def walsender(scene: Scene) -> int | None:
    """Who sends to the daemon."""
    rows = scene.world.server.execute(SLOT_OWNER, scene.world.daemon.slot)
    return int(rows[0][0]) if rows else None


def stopped(scene: Scene) -> bool:
    """SIGTERM, and a new start."""
    if scene.pid is None or not streams(scene):
        return False
    status = scene.world.daemon.stop()
    assert status == 0, f"SIGTERM ended in {status}:\n{scene.world.daemon.log()[-4000:]}"
    scene.world.daemon.start()
    return True


@contextmanager
def stopped_for_a_while(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# --- the links -----------------------------------------------------------------------------------------------


def cut(scene: Scene) -> bool:
    """Reset every connection of one server."""
    if (link := scene.link()) is None:
        return False
    link.cut()
    return True


def cut_in_the_middle(scene: Scene) -> bool:
    """A connection is reset after some more bytes, in the middle of whatever they are."""
    if (link := scene.link()) is None:
        return False
    way = scene.dice.choice(("up", "down"))
    link.cut_after(way, scene.dice.randrange(1, 3000))
    end_s = time.monotonic() + WITHIN_S
    while not link.has_cut(way) and time.monotonic() < end_s:
        time.sleep(0.01)
    has_cut = link.has_cut(way)
    link.heal()
    return has_cut


def held(scene: Scene) -> bool:
    """A link that lets nothing through for a while, one way or both."""
    if (link := scene.link()) is None:
        return False
    met = link.met
    link.hold(*scene.dice.choice(((), ("up",), ("down",))))
    scene.a_while()
    link.heal()
    return link.met > met


def lost(scene: Scene) -> bool:
    """A black hole for a while, one way or both, and then a reset."""
    if (link := scene.link()) is None:
        return False
    met = link.met
    link.lose(*scene.dice.choice(((), ("up",), ("down",))))
    scene.a_while()
    link.heal()
    return link.met > met


def refused(scene: Scene) -> bool:
    """A server that is away for a moment."""
    if (link := scene.link()) is None:
        return False
    link.refuse()
    scene.a_while()
    link.accept()
    return True


def late_request(scene: Scene) -> bool:
    """A request of a Kafka transaction that the client sends again, and that comes when it has gone on (F77)."""
    api = scene.dice.choices((Api.END_TXN, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE), (8, 1, 1))[0]
    doors = scene.doors.late
    for door in doors:
        door.keep(api)
    end_s = time.monotonic() + WITHIN_S
    while not (kept := [one for door in doors if (one := door.kept_now()) is not None]):
        if time.monotonic() > end_s:
            break
        time.sleep(0.002)
    for door in doors:
        door.let_through()
    if not kept:
        return False
    time.sleep(scene.dice.choice((0.0, 0.1, 0.3, 1.0, 2.0)))
    try:
        kept[0].deliver()
    except (OSError, queue.Empty):
        return False  # its connection was ended by another fault
    return True


# --- the servers ---------------------------------------------------------------------------------------------


def walsender_ended(scene: Scene) -> bool:
    """pg_terminate_backend of who holds the slot."""
    rows = scene.world.server.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active",
        scene.world.daemon.slot,
    )
    return bool(rows)


def postgres_crashed(scene: Scene) -> bool:
    """An immediate stop, recovery at the start."""
    scene.world.server.restart("immediate")
    return True


def postgres_restarted(scene: Scene) -> bool:
    """A fast stop, which waits for the walsender."""
    scene.world.server.restart("fast")
    return True


def broker_killed(scene: Scene) -> bool:
    """SIGKILL one of the three, while the others are well; it is back while other faults strike.

    Never a single broker: after a SIGKILL that one may forget the markers of the last transactions.
    """
    if len(scene.kafka.brokers) < 3 or not all(broker._serves() for broker in scene.kafka.brokers):
        return False
    broker = scene.dice.choice(scene.kafka.brokers)
    broker.kill()
    broker.launch()
    return True


def broker_frozen(scene: Scene) -> bool:
    """SIGSTOP one of the three for a while, in which it is asked and does not answer."""
    number = scene.dice.randrange(len(scene.kafka.brokers))
    door = scene.doors.proxies[number]
    if (pid := scene.kafka.brokers[number].pid) is None:
        return False
    with stopped_for_a_while(pid):
        before = dict(door.passed_bytes)
        scene.a_while()
        after = dict(door.passed_bytes)
    return after["up"] > before["up"] and after["down"] == before["down"]


def registry_away(scene: Scene) -> bool:
    """The registry answers nobody while cdcd starts."""
    if scene.pid is None or scene.registry.pid is None:
        return False
    accepted = scene.to_registry.accepted
    with stopped_for_a_while(scene.registry.pid):
        scene.world.daemon.kill()
        scene.world.daemon.start()
        end_s = time.monotonic() + WITHIN_S
        while scene.to_registry.accepted == accepted and time.monotonic() < end_s:
            time.sleep(0.01)
        scene.a_while()
    return scene.to_registry.accepted > accepted


STRIKES: dict[Callable[[Scene], bool], int] = {
    killed: 60,
    frozen: 5,
    frozen_for_long: 1,
    stopped: 4,
    cut: 8,
    cut_in_the_middle: 5,
    held: 4,
    held_for_long: 1,
    lost: 3,
    refused: 3,
    late_request: 6,
    walsender_ended: 6,
    postgres_crashed: 1,
    postgres_restarted: 1,
    broker_killed: 1,
    broker_frozen: 2,
    registry_away: 2,
}
"""How often each is chosen."""


def strike(scene: Scene) -> str:
    """One fault of the seed's choice, in the middle of things: the name of the one that struck."""
    moment(scene)
    while True:
        chosen = scene.dice.choices(list(STRIKES), list(STRIKES.values()))[0]
        try:
            if chosen(scene):
                return chosen.__name__
        except psycopg2.OperationalError:
            continue  # the server is not up again from the fault before


def moment(scene: Scene) -> None:
    """Wait for a moment of the seed's choice: while it starts, once it streams, or once it has written something."""
    kind = scene.dice.choices(("any", "streams", "writes"), (3, 7, 10))[0]
    if kind == "any":
        time.sleep(scene.dice.uniform(0, 0.5))
        return
    end_s = time.monotonic() + WITHIN_S
    while time.monotonic() < end_s and not streams(scene, writes=kind == "writes"):
        time.sleep(0.02)
    time.sleep(scene.dice.expovariate(8))


def streams(scene: Scene, *, writes: bool = False) -> bool:
    """Whether it reads the stream, and has written; what waits for its next try is told to make it now."""
    page = scene.world.daemon.status()
    if page.get("state") in ("backoff", "waiting_slot"):
        scene.world.daemon.reload()
    return page.get("state") == "streaming" and (not writes or page["transactions_written"] > 0)
