"""Errors of the daemon's surroundings: its configuration, its memory, its disk, capture files, the demo's servers.

In: a key, a path, the name of a file.  Out: classes of the tree.
Invariant: a problem with the configuration ends the process with its own exit status; the hint of a full disk says
how to free space.
Must not: do anything but describe the failure.
"""

from __future__ import annotations

from cdcd.errors.tree import EXIT_CONFIG, EXIT_MEMORY, CdcdError, Retry
from cdcd.redaction import clean_lines


class ConfigError(CdcdError):
    """The configuration cannot be used; `problems` holds one line each, with the key's path."""

    code = "CDCD-CONFIG"
    retry = Retry.NEVER
    exit_status = EXIT_CONFIG
    hint = "correct each line; `cdcd check --config FILE` lists the same problems"
    resolution = "correct each line; `cdcd check` lists the same problems"

    def __init__(
        self, message: str, problems: tuple[str, ...] = (), *, hint: str | None = None, **context: object
    ) -> None:
        super().__init__(message, hint=hint, **context)
        self.problems = problems


class InternalError(CdcdError):
    """An error that cdcd did not foresee: a defect. Nothing that is not durable was confirmed."""

    code = "CDCD-INTERNAL"
    hint = (
        "this is a defect of cdcd: report the traceback in the log (`internal_error`). No change was skipped; "
        "`cdcd resume` or a restart tries again"
    )


class ResumeRefused(CdcdError):
    """The requested resolution does not resolve the halt, or would not be safe now."""

    code = "CDCD-RESUME-REFUSED"
    hint = "nothing was written. Run `cdcd check`: it shows the current state"
    resolution = "nothing was written; follow the message. `cdcd check` shows the current state"


class NotDurableYet(CdcdError):
    """Not all commits below an LSN became durable in Kafka before the time-out of a command."""

    code = "CDCD-NOT-DURABLE"
    hint = "check `state` and `waiting_for` of /status, then wait again"
    resolution = "check the daemon's state, its waits and its lag, then wait again"


class SnapshotRefused(CdcdError):
    """A command for the snapshot of single tables cannot be executed."""

    code = "CDCD-SNAPSHOT-REFUSED"
    hint = "`cdcd snapshot status` shows the tables that are being copied"
    resolution = "follow the message; `cdcd snapshot status` shows the tables that are being copied"


class NotStreaming(SnapshotRefused):
    """The command needs a session that streams, and the daemon has none at the moment."""

    code = "CDCD-NOT-STREAMING"
    hint = (
        "repeat the command when `state` of /status is streaming (`curl -s localhost:8080/status`, or your "
        "admin.port); `reason` is the cause of a halt or a retry"
    )


class SecretUnreadable(CdcdError):
    """The file of a secret cannot be read when it is needed."""

    code = "CDCD-SECRET-UNREADABLE"
    retry = Retry.AUTO  # a file that is being rotated exists again at the next attempt
    hint = (
        "restore the file, readable for the daemon's user; cdcd reads it again at each retry, and no change is "
        "lost while the slot retains its WAL"
    )


class OutOfMemory(CdcdError):
    """The operating system refuses memory. The process ends: its successor can use the memory that it frees."""

    code = "CDCD-OUT-OF-MEMORY"
    retry = Retry.NEVER
    exit_status = EXIT_MEMORY
    hint = "only durable changes were confirmed. Give cdcd more memory, or lower buffer.memory, and start it again"


class SpillError(CdcdError):
    """Changes of open transactions cannot be spilled to disk or read back; none of them is confirmed."""

    code = "CDCD-SPILL"
    hint = (
        "the changes were not confirmed. Set buffer.spill_dir to a directory that only the daemon can write to, and "
        "restart cdcd"
    )


class SpillFull(SpillError):
    """The open transactions fit neither in memory nor in the spill space on disk (F30).

    cdcd does not retry by itself: the server sends the same transactions from their beginning (F27), which would fill
    the same disk again, and other programs may need it. The halt frees the space at once.
    """

    code = "CDCD-SPILL-FULL"
    hint = (
        "free disk space, then `cdcd resume`; or raise buffer.spill and restart cdcd; or set "
        "source.protocol.streaming: off and restart cdcd: the server then spills large transactions to its own "
        "disk until they commit"
    )
    resolution = (
        "free disk space, then `cdcd resume`; or raise `buffer.spill`, or set `source.protocol.streaming: off` "
        "(the server spills large transactions to its own disk until they commit), and restart cdcd"
    )


class SpillLost(SpillError):
    """The spill files of open transactions were removed while the daemon used them.

    cdcd retries by itself: the next session creates its directory again, and the server sends their changes (F27).
    """

    code = "CDCD-SPILL-LOST"
    retry = Retry.AUTO
    hint = (
        "no change is lost: the server sends the changes again. Exclude buffer.spill_dir from the clean-up of "
        "temporary files"
    )


class CaptureError(CdcdError):
    """A capture file cannot be created or read, or has a line that is not hex."""

    code = "CDCD-CAPTURE"
    hint = "choose another file, or correct the line"


class StackError(CdcdError):
    """A server of the local stack could not be started, or its artefact could not be fetched."""

    code = "CDCD-STACK"
    hint = "correct what the message names; `python -m cdcd.demo.stack` starts the local servers"
    resolution = (
        "correct what the message names; it concerns only the local servers of `make demo` and the tests"
    )

    @staticmethod
    def _cleaned(text: str) -> str:
        return clean_lines(text)  # it has the last lines of a child's log
