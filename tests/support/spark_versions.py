"""Other versions of Spark beside the one of the virtual environment, each with an interpreter that finds it first.

In: a series, such as "4.2".  Out: the path of a Python that imports this PySpark, and all other packages from the
environment that runs.
Invariant: a folder is complete, or it is made again.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

FOLDER = Path("build") / "spark"
SERIES = ("4.3", "4.2", "4.1")


def python_with_spark(series: str) -> Path:
    """Return the interpreter for a series of Spark; make its environment if it is missing. Needs a package index."""
    folder = (FOLDER / series).absolute()
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        _install(python, series)
        done.touch()
    return python


def _install(python: Path, series: str) -> None:
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"pyspark=={series}.*"], check=True)
    # After its own packages: PySpark's own folder is found first, everything else here.
    shown = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    (Path(shown.stdout.strip()) / "zz_shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
