"""Host names that stop resolving, or resolve to another address, for one process and its libraries.

In: names that end in ".test", their addresses.  Out: the environment of a process that resolves the names so.
Invariant: the process calls getaddrinfo as usual; a preloaded library answers, and a change holds from the next call
on. libc resolves all other names. A C compiler is required, as for cdcd's own extensions.
"""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class Names:
    """A folder for the library and its files."""

    def __init__(self, folder: Path) -> None:
        self._file, self._asked = folder / "names", folder / "asked"
        self._library = folder / "names.so"
        self._addresses: dict[str, str] = {}
        compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
        command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", self._library, SOURCE, "-ldl"]
        subprocess.run(command, check=True)
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for the process."""
        return {
            "LD_PRELOAD": str(self._library),
            "NAMES_FILE": str(self._file),
            "NAMES_ASKED": str(self._asked),
        }

    def point(self, name: str, address: str) -> None:
        """Let the name resolve to this address from now on."""
        self._addresses[name] = address
        self._write()

    def forget(self, name: str) -> None:
        """Let the name not resolve any more."""
        del self._addresses[name]
        self._write()

    def asked_in_vain(self, name: str) -> int:
        """Return how often the name was looked up while it did not resolve."""
        return self._asked.read_text().splitlines().count(name) if self._asked.exists() else 0

    def _write(self) -> None:
        whole = self._file.with_suffix(".new")
        whole.write_text("".join(f"{name} {address}\n" for name, address in self._addresses.items()))
        whole.replace(self._file)
