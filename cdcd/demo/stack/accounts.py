"""The account that a server runs as, and folders that this account can read.

In: this process's user.  Out: None for an ordinary user; for root an account that is not root, because
PostgreSQL refuses root. Other users often cannot read home folders (mode 700), so programs below one are copied to
a folder owned by root under /var/tmp, cached there and verified like every other artefact.
Must not: trust a folder under /var/tmp that another user has created.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

from cdcd.demo.stack.artefacts import Artefact, Cache
from cdcd.demo.stack.packages import probe_postgres
from cdcd.demo.stack.process import Account
from cdcd.errors import StackError

PREFERRED_ACCOUNTS = ("postgres", "nobody")


def server_account() -> Account | None:
    """Return the account for servers that refuse root, None if this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in PREFERRED_ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise StackError(
        "running as root and there is no account to run PostgreSQL as", wanted=PREFERRED_ACCOUNTS
    )


def is_reachable(path: Path) -> bool:
    """Return whether every account can read this path: all its parent folders are open to others."""
    path = path.resolve()
    if not path.stat().st_mode & stat.S_IROTH:
        return False
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def reachable_programs(folder: Path, name: str, *, libraries: Path | None = None) -> Path:
    """Return the PostgreSQL in `folder` (with `bin/` inside), or a copy of it that the server account can run.

    `libraries` is a folder of shared libraries that the programs load from `../../../<its name>`.
    """
    if server_account() is None or is_reachable(folder / "bin"):
        return folder

    def fill(copy: Path) -> None:
        shutil.copytree(folder, copy / folder.parent.name / folder.name, symlinks=True)
        if libraries is not None:
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)

    def programs(copy: Path) -> Path:
        return copy / folder.parent.name / folder.name

    artefact = Artefact(name, fill, lambda copy: probe_postgres(programs(copy) / "bin"))
    return programs(Cache(_own_folder_for_all()).get(artefact))


def make_run_folder(prefix: str = "cdcd-", account: Account | None = None) -> Path:
    """Create a folder for servers: every user may enter it, only its owner may list it."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if account is not None:
        folder.chmod(0o711)
    return folder


def _own_folder_for_all() -> Path:
    folder = Path("/var/tmp") / f"cdcd-{os.geteuid()}"  # noqa: S108 - its owner and mode are checked below
    try:
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)  # whatever the umask is
    except FileExistsError:
        pass
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise StackError(
            "this folder must belong to this user, and no other user may write to it", folder=folder
        )
    return folder
