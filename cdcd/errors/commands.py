"""Complete the commands that a hint names, so that an operator can type them.

In: a text with commands of cdcd in backquotes, as `cdcd resume`; once, the configuration file of this process.
Out: the same text, each command with `--config` and that file, or FILE where the file is not known.
Invariant: a command that has the option already, and a text without a command, do not change.
Must not: decide anything by a text: it may come from a server.
"""

from __future__ import annotations

import re
import shlex

__all__ = ["typeable", "use_file"]

_UNKNOWN = "--config FILE"
_COMMAND = re.compile(r"`(cdcd (?:check|drop-slot|init|resnapshot|resume|snapshot|verify|wait)(?: [^`]*)?)`")
_option = _UNKNOWN


def use_file(path: str | None) -> None:
    """Name this configuration file, by its absolute path, in all later hints; None: the file is unknown."""
    global _option
    _option = _UNKNOWN if path is None else f"--config {shlex.quote(path)}"


def typeable(hint: str) -> str:
    """Return the hint with the configuration file in each command."""
    return _COMMAND.sub(lambda found: f"`{_with_file(found[1])}`", hint)


def _with_file(command: str) -> str:
    if _UNKNOWN in command:
        return command.replace(_UNKNOWN, _option)
    return command if "--config" in command else f"{command} {_option}"
