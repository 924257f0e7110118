"""The random faults: each strikes once and is over when its function returns, apart from cdcd's recovery.

In: a world whose daemon connects through proxies, a seeded generator.  Out: whether the fault had an effect.
Invariant: a fault without an effect (an unused link, a process that does not run, a pause without traffic) does not
count.
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
    """A cluster: an object with `brokers`."""
    registry: SchemaRegistry
    doors: KafkaDoors
    to_postgres: Proxy
    to_registry: Proxy
    dice: random.Random
    wal_sender_timeout_s: float | None = None
    """The server's setting, if it is short enough for faults that last longer."""

    @property
    def pid(self) -> int | None:
        """The pid of the daemon, while it runs."""
        process = self.world.daemon.process
        return process.pid if process is not None and process.poll() is None else None

    def links(self) -> list[Proxy]:
        return [self.to_postgres, self.to_registry, *self.doors.proxies]

    def link(self) -> Proxy | None:
        """Return a random link that has open connections."""
        used = [link for link in self.links() if link.open_connections]
        return self.dice.choice(used) if used else None

    def a_while(self, longest_s: float = 0.6) -> None:
        """Sleep for the random duration of a fault."""
        time.sleep(self.dice.uniform(0.02, longest_s))

    def heal(self) -> None:
        """Open every link and start every server that is down."""
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
    """SIGSTOP for a while, during which WAL is written and nothing is confirmed."""
    if (pid := scene.pid) is None:
        return False
    with stopped_for_a_while(pid):
        written_lsn, confirmed_lsn = positions(scene)
        scene.a_while()
        after = positions(scene)
    return after[0] > written_lsn and after[1] == confirmed_lsn


def positions(scene: Scene) -> tuple[int, int | None]:
    """Return the server's WAL position and the slot's confirmed position."""
    server = scene.world.server
    return wal_position(server), confirmed_position(server, scene.world.daemon.slot)


def frozen_for_long(scene: Scene) -> bool:
    """SIGSTOP until the server has ended the walsender (F74)."""
    if (pid := scene.pid) is None:
        return False
    with stopped_for_a_while(pid):
        return walsender_gives_up(scene)


def held_for_long(scene: Scene) -> bool:
    """A link to PostgreSQL that forwards nothing until the server has ended the walsender (F16, F74)."""
    scene.to_postgres.hold()
    try:
        return walsender_gives_up(scene)
    finally:
        scene.to_postgres.heal()


def walsender_gives_up(scene: Scene) -> bool:
    """Wait until the server ends the walsender, if its timeout is short; False if there is no walsender."""
    if scene.wal_sender_timeout_s is None or not (pid := walsender(scene)):
        return False
    end_s = time.monotonic() + 2 * scene.wal_sender_timeout_s
    while walsender(scene) == pid:
        if time.monotonic() > end_s:
            return False
        time.sleep(0.1)
    return True


def walsender(scene: Scene) -> int | None:
    """Return the pid of the daemon's walsender."""
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
    """Reset a connection after some more bytes, in the middle of a message."""
    if (link := scene.link()) is None:
        return False
    direction = scene.dice.choice(("up", "down"))
    link.cut_after(direction, scene.dice.randrange(1, 3000))
    end_s = time.monotonic() + WITHIN_S
    while not link.has_cut(direction) and time.monotonic() < end_s:
        time.sleep(0.01)
    has_cut = link.has_cut(direction)
    link.heal()
    return has_cut


def held(scene: Scene) -> bool:
    """A link that delays all bytes for a while, in one direction or both."""
    if (link := scene.link()) is None:
        return False
    met = link.met
    link.hold(*scene.dice.choice(((), ("up",), ("down",))))
    scene.a_while()
    link.heal()
    return link.met > met


def lost(scene: Scene) -> bool:
    """A black hole for a while, in one direction or both, and then a reset."""
    if (link := scene.link()) is None:
        return False
    met = link.met
    link.lose(*scene.dice.choice(((), ("up",), ("down",))))
    scene.a_while()
    link.heal()
    return link.met > met


def refused(scene: Scene) -> bool:
    """A link that refuses connections for a moment."""
    if (link := scene.link()) is None:
        return False
    link.refuse()
    scene.a_while()
    link.accept()
    return True


def late_request(scene: Scene) -> bool:
    """A request of a Kafka transaction that the client sends again, and that arrives after later requests (F77)."""
    api = scene.dice.choices((Api.END_TXN, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE), (8, 1, 1))[0]
    doors = scene.doors.late
    for door in doors:
        door.keep(api)
    end_s = time.monotonic() + WITHIN_S
    while not (withheld_requests := [one for door in doors if (one := door.withheld_now()) is not None]):
        if time.monotonic() > end_s:
            break
        time.sleep(0.002)
    for door in doors:
        door.let_through()
    if not withheld_requests:
        return False
    time.sleep(scene.dice.choice((0.0, 0.1, 0.3, 1.0, 2.0)))
    try:
        withheld_requests[0].deliver()
    except (OSError, queue.Empty):
        return False  # its connection was ended by another fault
    return True


# --- the servers ---------------------------------------------------------------------------------------------


def walsender_ended(scene: Scene) -> bool:
    """pg_terminate_backend of the walsender that holds the slot."""
    rows = scene.world.server.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active",
        scene.world.daemon.slot,
    )
    return bool(rows)


def postgres_crashed(scene: Scene) -> bool:
    """An immediate stop, and crash recovery at the start."""
    scene.world.server.restart("immediate")
    return True


def postgres_restarted(scene: Scene) -> bool:
    """A fast stop, which waits for the walsender."""
    scene.world.server.restart("fast")
    return True


def broker_killed(scene: Scene) -> bool:
    """SIGKILL one of the three brokers while all of them run; it restarts while other faults strike.

    Never a single broker: after a SIGKILL a single broker may lose the markers of the last transactions.
    """
    if len(scene.kafka.brokers) < 3 or not all(broker._serves() for broker in scene.kafka.brokers):
        return False
    broker = scene.dice.choice(scene.kafka.brokers)
    broker.kill()
    broker.launch()
    return True


def broker_frozen(scene: Scene) -> bool:
    """SIGSTOP one of the three brokers for a while, during which it gets requests and does not answer."""
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
    """The registry does not answer while cdcd starts."""
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
"""The relative frequency of each fault."""


def strike(scene: Scene) -> str:
    """Inject one random fault at a random moment; return the name of the fault that struck."""
    moment(scene)
    while True:
        chosen = scene.dice.choices(list(STRIKES), list(STRIKES.values()))[0]
        try:
            if chosen(scene):
                return chosen.__name__
        except psycopg2.OperationalError:
            continue  # the server has not restarted yet after the fault before


def moment(scene: Scene) -> None:
    """Wait for a random moment: while the daemon starts, once it streams, or once it has written transactions."""
    kind = scene.dice.choices(("any", "streams", "writes"), (3, 7, 10))[0]
    if kind == "any":
        time.sleep(scene.dice.uniform(0, 0.5))
        return
    end_s = time.monotonic() + WITHIN_S
    while time.monotonic() < end_s and not streams(scene, writes=kind == "writes"):
        time.sleep(0.02)
    time.sleep(scene.dice.expovariate(8))


def streams(scene: Scene, *, writes: bool = False) -> bool:
    """Whether the daemon streams, and has written; a waiting daemon is sent SIGHUP to retry now."""
    page = scene.world.daemon.status()
    if page.get("state") in ("backoff", "waiting_slot"):
        scene.world.daemon.reload()
    return page.get("state") == "streaming" and (not writes or page["transactions_written"] > 0)
