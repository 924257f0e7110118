"""Build a C extension from its source into a folder, with sanitizers if wanted, and load it from there.

In: an extension's module name, a folder.  Out: the extension; the environment that its process needs.
Invariant: nothing is written to the source's folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

EXTENSIONS = {
    "reading": "cdcd.source.reading",
    "rows": "cdcd.avro.rows",
    "transactions": "cdcd.avro.rows",
    "columns": "cdcd.columnar._arrow",
    "messages": "cdcd.columnar._arrow",
}
"""The extension that each target compares with its Python fallback."""

_SANITIZED = (
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
)
_COMPILER = os.environ.get("CC", "gcc")


def build(module: str, folder: Path, *, sanitized: bool = False) -> Path:
    """Build the extension of this name, e.g. `cdcd.source.reading`; return its path."""
    found = importlib.util.find_spec("cdcd")
    assert found is not None
    assert found.submodule_search_locations
    source = Path(found.submodule_search_locations[0]).joinpath(*module.split(".")[1:]).with_suffix(".pyx")
    made, extension = (
        folder / f"{source.stem}.c",
        folder / f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}",
    )
    subprocess.run([*_cython(), "-3", "--module-name", module, "-o", made, source], check=True)
    flags = _SANITIZED if sanitized else ("-O3",)
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([_COMPILER, *flags, "-shared", "-fPIC", include, made, "-o", extension], check=True)
    return extension


def _cython() -> list[str]:
    if importlib.util.find_spec("Cython") is not None:
        return [sys.executable, "-m", "cython"]
    found = shutil.which("cython")
    if found is None:
        raise SystemExit("Cython is not installed: install cdcd with the extra `dev`")
    return [found]


def load(module: str, extension: Path) -> None:
    """Load this extension as the module of that name, before any import of the module."""
    assert module not in sys.modules
    spec = importlib.util.spec_from_file_location(
        module, extension, loader=ExtensionFileLoader(module, str(extension))
    )
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    sys.modules[module] = loaded


def sanitizers() -> dict[str, str]:
    """Return the environment for a Python process that loads an extension built with the sanitizers.

    Python's own allocator would hide the bounds of objects. Leaks are not reported, because the interpreter itself
    never frees some memory.
    """
    asked = subprocess.run(
        [_COMPILER, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    )
    library = asked.stdout.strip()
    if not os.path.isabs(library):
        raise SystemExit(f"{_COMPILER} has no libasan.so")
    return {
        "LD_PRELOAD": library,
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:hard_rss_limit_mb=1024",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
