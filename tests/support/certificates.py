"""Create authorities and certificates with openssl, and install them as a rotation does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def authority(folder: Path) -> None:
    """Create a CA, a certificate for the server and a certificate for the role."""
    folder.mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        "req",
        "-x509",
        *key,
        "-keyout",
        "ca.key",
        "-out",
        "ca.crt",
        "-subj",
        "/CN=ca",
        "-days",
        "2",
        folder=folder,
    )
    (folder / "server.ext").write_text("subjectAltName=IP:127.0.0.1\n")
    (folder / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
    for who, name in (("server", "127.0.0.1"), ("client", "cdcd")):
        openssl(
            "req", *key, "-keyout", f"{who}.key", "-out", f"{who}.csr", "-subj", f"/CN={name}", folder=folder
        )
        signing = (
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            f"{who}.ext",
        )
        openssl("x509", "-req", "-in", f"{who}.csr", *signing, "-out", f"{who}.crt", folder=folder)


def install(source: Path, target: Path, *names: str) -> None:
    """Install files as a rotation does: replace each atomically; only the owner may read a key."""
    owner = target.stat()
    for name in names:
        replacement = target / f"{name}.new"
        shutil.copyfile(source / name, replacement)
        replacement.chmod(0o600)
        shutil.chown(replacement, owner.st_uid, owner.st_gid)
        replacement.rename(target / name)
