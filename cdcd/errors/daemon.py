"""Errors of the daemon's own surroundings: its configuration, its disk, what is told of the wire, the demo's servers.

In: a key, a path, the name of a file.  Out: classes of the tree.
Invariant: a problem with the configuration ends the process with a status of its own; what a disk lacks is told
with what makes room.
Must not: do anything but say it.
"""

from __future__ import annotations

from cdcd.errors.tree import EXIT_CONFIG, EXIT_MEMORY, CdcdError, Retry
from cdcd.redaction import clean_lines


class ConfigError(CdcdError):
    """The configuration cannot be used; `problems` holds one line each, with the key's path."""

    code = "CDCD-CONFIG"
    retry = Retry.NEVER
    exit_status = EXIT_CONFIG
    hint = "correct each line; `cdcd check --config FILE` says the same"

    def __init__(
        self, message: str, problems: tuple[str, ...] = (), *, hint: str | None = None, **context: object
    ) -> None:
        super().__init__(message, hint=hint, **context)
        self.problems = problems


class ResumeRefused(CdcdError):
    """The requested resolution does not resolve the halt, or would not be safe now."""

    code = "CDCD-RESUME-REFUSED"
    hint = "`cdcd check` shows the state"


class SecretUnreadable(CdcdError):
    """A secret's file cannot be read at the moment of use."""

    code = "CDCD-SECRET-UNREADABLE"
    retry = Retry.AUTO  # a file that is being rotated is there again at the next attempt
    hint = "put the file back, readable for the daemon's user; it is read again at each try"


class OutOfMemory(CdcdError):
    """The system refuses memory. Ends the process: one that begins again has what this one had taken."""

    code = "CDCD-OUT-OF-MEMORY"
    retry = Retry.NEVER
    exit_status = EXIT_MEMORY
    hint = "give it more memory, or lower buffer.memory; nothing that is not durable was confirmed"


class SpillError(CdcdError):
    """Changes of open transactions cannot be kept on disk, or not be read back; nothing of them is confirmed."""

    code = "CDCD-SPILL"
    hint = "set buffer.spill_dir to a folder that the daemon alone can write to, and restart cdcd"


class SpillFull(SpillError):
    """There is no room for more of the open transactions, neither in memory nor on disk (F30).

    Not tried again by itself: the server sends the same transactions from their beginning (F27), so the same disk
    would be filled up again, and others may need it. The halt gives the room back at once.
    """

    code = "CDCD-SPILL-FULL"
    hint = (
        "make room, then `cdcd resume`; or raise buffer.spill and restart cdcd; or set source.protocol.streaming: "
        "off and restart, then the server keeps large transactions on its own disk until they commit"
    )


class SpillLost(SpillError):
    """The files of open transactions were taken away under the daemon.

    Tried again by itself: the next session makes its folder again, and the server sends what was in it (F27).
    """

    code = "CDCD-SPILL-LOST"
    retry = Retry.AUTO
    hint = "keep what clears up temporary files away from buffer.spill_dir; what was lost is sent again"


class CaptureError(CdcdError):
    """A capture file that cannot be made or read, or a line that is not hex."""

    code = "CDCD-CAPTURE"
    hint = "choose another file, or correct the line"


class StackError(CdcdError):
    """A server of the local stack, or its artefact, could not be had."""

    code = "CDCD-STACK"
    hint = "see the message: the local servers are started by `python -m cdcd.demo.stack`"

    @staticmethod
    def _cleaned(text: str) -> str:
        return clean_lines(text)  # it has the last lines of a child's log
