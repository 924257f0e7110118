"""The faults of the campaign, several at once; each is over when its function returns.

In: a scene, the plan's strikes.  Out: how often each fault really struck.
Invariant: a fault counts only if its effect was observed: bytes were lost or delayed, a connection was cut, a
process had requests that it did not answer, a request was delivered late. What two faults share (a process, a link)
only one of them has at a time; the other one does not strike.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import psycopg2
from confluent_kafka import KafkaException

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.errors import StackError
from tests.campaign.plan import Strike
from tests.campaign.servers import Servers
from tests.support.daemon import Daemon
from tests.support.late import Api, WithheldRequest
from tests.support.stack import SLOT_OWNER

NOT_NOW = (psycopg2.OperationalError, psycopg2.InterfaceError, KafkaException, StackError, ConnectionError)
"""Errors of a fault whose server is down because of another fault."""
MOST_BROKERS_OUT = 2
POSITIONS = """SELECT pg_current_wal_lsn() - '0/0'::pg_lsn, (SELECT confirmed_flush_lsn - '0/0'::pg_lsn
    FROM pg_replication_slots WHERE slot_name = %s)"""


@dataclass
class Scene:
    """The servers, the daemon, and what happened. `failures`: what the daemon must not have done."""

    servers: Servers
    daemon: Daemon
    struck: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the load is over: each fault ends."""

    def __post_init__(self) -> None:
        self._claimed: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def claim(self, *names: str, brokers: int = 0) -> Iterator[bool]:
        """Yield whether nothing else has these names; `brokers`: how many of the brokers' places it needs."""
        wanted = Counter(names) + Counter({"brokers": brokers})
        most = {"brokers": MOST_BROKERS_OUT}
        with self._lock:
            is_free = all(self._claimed[name] + count <= most.get(name, 1) for name, count in wanted.items())
            if is_free:
                self._claimed += wanted
        try:
            yield is_free
        finally:
            if is_free:
                with self._lock:
                    self._claimed -= wanted

    def wait(self, seconds: float) -> None:
        """Wait for the end of a fault, or of the load."""
        self.over.wait(seconds)

    @property
    def pid(self) -> int | None:
        """The pid of the daemon, while it runs."""
        process = self.daemon.process
        return process.pid if process is not None and process.poll() is None else None

    def positions(self) -> tuple[int, int | None]:
        """Return the server's WAL position and the slot's confirmed position, None while the slot is created."""
        ((written_lsn, confirmed_lsn),) = self.servers.postgres.execute(POSITIONS, self.daemon.slot)
        return int(written_lsn), None if confirmed_lsn is None else int(confirmed_lsn)

    def walsender(self) -> int | None:
        """Return the pid of the daemon's walsender."""
        rows = self.servers.postgres.execute(SLOT_OWNER, self.daemon.slot)
        return int(rows[0][0]) if rows else None


def strike_all(scene: Scene, strikes: Iterable[Strike], faults: dict[str, Fault]) -> list[threading.Thread]:
    """Start each fault at its time, in a thread; return the threads."""
    begun = threading.Event()
    threads = [
        threading.Thread(target=_strike, args=(scene, strike, faults[strike.fault], begun), daemon=True)
        for strike in strikes
    ]
    for thread in threads:
        thread.start()
    begun.set()
    return threads


def _strike(scene: Scene, strike: Strike, fault: Fault, begun: threading.Event) -> None:
    begun.wait()
    if scene.over.wait(strike.at_s):
        return
    try:
        has_struck = fault(scene, random.Random(strike.seed), strike.lasts_s)
    except NOT_NOW:
        return
    except Exception as error:  # noqa: BLE001 - a finding of the seed
        scene.failures.append(f"{strike.fault}: {type(error).__name__}: {error}")
        return
    scene.struck[strike.fault] += has_struck


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop a process until the block ends."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


Fault = Callable[[Scene, random.Random, float], bool]

# --- cdcd ----------------------------------------------------------------------------------------------------


def cdcd_killed(scene: Scene, _dice: random.Random, lasts_s: float) -> bool:
    """SIGKILL; a new start after a while."""
    with scene.claim("cdcd") as is_free:
        if not is_free or scene.pid is None:
            return False
        scene.daemon.kill()
        scene.wait(lasts_s / 4)
        scene.daemon.start()
        return True


def cdcd_stopped(scene: Scene, _dice: random.Random, lasts_s: float) -> bool:
    """SIGTERM, which has to end with status 0; a new start after a while."""
    with scene.claim("cdcd") as is_free:
        if not is_free or scene.pid is None or not scene.daemon.status():
            return False
        if status := scene.daemon.stop():
            scene.failures.append(f"SIGTERM ended with status {status}")
        scene.wait(lasts_s / 4)
        scene.daemon.start()
        return True


def cdcd_paused(scene: Scene, _dice: random.Random, lasts_s: float) -> bool:
    """SIGSTOP for a while, during which WAL is written and nothing is confirmed."""
    with scene.claim("cdcd") as is_free:
        if not is_free or (pid := scene.pid) is None:
            return False
        with paused(pid):
            before = scene.positions()
            scene.wait(lasts_s)
            after = scene.positions()
        return after[0] > before[0] and after[1] == before[1] is not None


def clock_skewed(scene: Scene, dice: random.Random, lasts_s: float) -> bool:
    """The wall clock of cdcd is set forward or back for a while, during which it confirms transactions."""
    with scene.claim("clock") as is_free:
        if not is_free or scene.pid is None:
            return False
        before = scene.positions()[1]
        scene.servers.clock.write_text(str(dice.choice((-86_400, -60, -3, 3, 60, 86_400, 20 * 365 * 86_400))))
        try:
            scene.wait(lasts_s)
            return scene.positions()[1] != before is not None
        finally:
            scene.servers.clock.write_text("0")


def registry_paused(scene: Scene, _dice: random.Random, lasts_s: float) -> bool:
    """The registry does not answer while cdcd starts and asks."""
    link, pid = scene.servers.to_registry, scene.servers.registry.pid
    with scene.claim("cdcd", "registry") as is_free:
        if not is_free or scene.pid is None or pid is None:
            return False
        with paused(pid):
            before = dict(link.passed_bytes)
            scene.daemon.kill()
            scene.daemon.start()
            scene.wait(lasts_s)
            after = dict(link.passed_bytes)
        return after["up"] > before["up"] and after["down"] == before["down"]


# --- PostgreSQL ----------------------------------------------------------------------------------------------


def walsender_ended(scene: Scene, _dice: random.Random, _lasts_s: float) -> bool:
    """pg_terminate_backend of the walsender."""
    pid = scene.walsender()
    return pid is not None and scene.servers.postgres.execute("SELECT pg_terminate_backend(%s)", pid) == [
        (True,)
    ]


def walsender_paused(scene: Scene, _dice: random.Random, lasts_s: float) -> bool:
    """SIGSTOP of the walsender, while WAL is written."""
    with scene.claim("postgres") as is_free:
        if not is_free or (pid := scene.walsender()) is None:
            return False
        with paused(pid):
            before = scene.positions()
            scene.wait(lasts_s)
            after = scene.positions()
        return after[0] > before[0] and after[1] == before[1]


# --- Kafka ---------------------------------------------------------------------------------------------------


def request_late(scene: Scene, dice: random.Random, lasts_s: float) -> bool:
    """A request of a Kafka transaction that the client sends again, and that arrives later as well (F77)."""
    api = dice.choices((Api.END_TXN, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE), (6, 2, 2))[0]
    with scene.claim("late") as is_free:
        request = withheld(scene, api) if is_free else None
        if request is None:
            return False
        if dice.random() < 0.6:
            await_next_rows(scene)
        else:
            scene.wait(dice.choice((0.0, 0.1, 0.3, 1.0, lasts_s)))
        with contextlib.suppress(queue.Empty):  # no answer within its time: delivered all the same
            request.deliver()
        return True


def withheld(scene: Scene, api: Api) -> WithheldRequest | None:
    """Withhold the next request of a kind; None if cdcd sends none for some seconds."""
    doors = scene.servers.doors.late
    for door in doors:
        door.keep(api)
    found: list[WithheldRequest] = []
    for _ in range(600):
        found = [one for door in doors if (one := door.withheld_now()) is not None]
        if found or scene.over.wait(0.005):
            break
    for door in doors:
        door.let_through()
    return found[0] if found else None


def await_next_rows(scene: Scene, within_s: float = 5.0) -> None:
    """Wait until cdcd sends rows: after an EndTxn the first rows are of another transaction, which is open then."""
    has_sent = threading.Event()

    def notice(_frame: bytes) -> bool:
        has_sent.set()
        return False

    for door in scene.servers.doors.late:
        door.keep(Api.PRODUCE, notice)
    has_sent.wait(within_s)
    for door in scene.servers.doors.late:
        door.let_through()


def out_of_three(scene: Scene, dice: random.Random) -> KafkaBroker:
    """Return any broker."""
    return dice.choice(scene.servers.kafka.brokers)
