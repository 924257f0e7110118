"""`make fuzz`: fuzz one target, coverage-guided by atheris if it is installed, otherwise with the plain mutator.

In: --target, --runs or --seconds, --seed.  Out: a summary; a crash ends the run with status 1 or atheris' own status,
and its input is in the folder of --crashes. Add the input to tests/fuzz/crashes/<target> once the bug is fixed.
The address space is limited, so an unbounded allocation is a crash as well.
With --asan the target's extension is built with AddressSanitizer and UndefinedBehaviorSanitizer in a temporary folder
and fuzzed with the plain mutator: a finding ends the run like a crash, and its input is in `crash-in-hand`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from hashlib import sha256
from pathlib import Path
from random import Random

from cdcd.extensions import extension
from tests.fuzz.compiled import EXTENSIONS, build, load, sanitizers

MEMORY_LIMIT_BYTES = 1 << 30


def main() -> int:
    """Fuzz one target; return the exit status."""
    options = _options()
    if options.asan:
        return _sanitized(options)
    if options.extension:
        load(EXTENSIONS[options.target], options.extension)
    if options.engine != "mutator":
        try:
            import atheris
        except ModuleNotFoundError:
            if options.engine == "atheris":
                raise
        else:
            with atheris.instrument_imports(include=["cdcd"]):
                from tests.fuzz.targets import TARGETS
            return _guided(atheris, TARGETS[options.target], options)
    return _mutated(options)


def _refuse_in_vain(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with an error if the target's extension is missing: the target compares it with its Python fallback."""
    name = EXTENSIONS.get(options.target)
    if name is None and options.asan:
        parser.error(
            f"--asan: the target {options.target} has no extension; choose from {', '.join(EXTENSIONS)}"
        )
    if name is not None and not options.asan and options.extension is None and extension(name) is None:
        parser.error(
            f"the target {options.target} compares {name} with its fallback, and it is not compiled here"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument(
        "--target",
        choices=("decoder", "frames", "assembler", "reading", "rows", "transactions", "columns", "messages"),
        default="decoder",
    )
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs")
    parser.add_argument("--seconds", type=int, default=0, help="end after this time; 0 means no limit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("auto", "atheris", "mutator"), default="auto")
    parser.add_argument("--crashes", type=Path, default=Path("."), help="folder for crashing inputs")
    parser.add_argument(
        "--asan", action="store_true", help="run the target's extension under AddressSanitizer"
    )
    parser.add_argument("--extension", type=Path, help=argparse.SUPPRESS)  # the extension built by --asan
    options = parser.parse_args()
    _refuse_in_vain(parser, options)
    return options


def _sanitized(options: argparse.Namespace) -> int:
    """Build the target's extension with the sanitizers, and fuzz it in a Python process that has them loaded."""
    with tempfile.TemporaryDirectory(prefix="cdcd-asan-") as folder:
        built = build(EXTENSIONS[options.target], Path(folder), sanitized=True)
        again = [argument for argument in sys.argv[1:] if argument != "--asan"]
        command = [
            sys.executable,
            "-m",
            "tests.fuzz",
            *again,
            "--engine",
            "mutator",
            "--extension",
            str(built),
        ]
        return subprocess.run(command, env=os.environ | sanitizers(), check=False).returncode


def _guided(atheris, target, options) -> int:  # type: ignore[no-untyped-def]
    from tests.fuzz.corpus import corpus
    from tests.fuzz.targets import MAX_INPUT_BYTES

    options.crashes.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cdcd-fuzz-") as folder:
        for number, data in enumerate(corpus(options.target)):
            (Path(folder) / f"{number:04}").write_bytes(data)
        print(f"target {options.target}, atheris, seed {options.seed}", flush=True)
        arguments = [
            sys.argv[0],
            f"-runs={options.runs}",
            f"-max_total_time={options.seconds}",
            f"-seed={options.seed}",
            f"-max_len={MAX_INPUT_BYTES}",
            f"-rss_limit_mb={MEMORY_LIMIT_BYTES >> 20}",
            f"-malloc_limit_mb={MEMORY_LIMIT_BYTES >> 22}",
            f"-artifact_prefix={options.crashes}/",
            "-print_final_stats=1",
            folder,
        ]
        atheris.Setup(arguments, target)
        atheris.Fuzz()  # ends the process
    return 0


def _mutated(options: argparse.Namespace) -> int:
    from tests.fuzz.corpus import corpus
    from tests.fuzz.mutator import inputs
    from tests.fuzz.targets import TARGETS

    if not options.extension:  # AddressSanitizer reserves terabytes of addresses
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    options.crashes.mkdir(parents=True, exist_ok=True)
    in_hand = options.crashes / "crash-in-hand"
    target = TARGETS[options.target]
    begun_s, done = time.monotonic(), 0
    print(f"target {options.target}, plain mutator, seed {options.seed}", flush=True)
    for data in itertools.islice(inputs(corpus(options.target), Random(options.seed)), options.runs):
        if options.extension:
            in_hand.write_bytes(data)  # a finding of the sanitizers ends the process at once
        try:
            target(data)
        except BaseException:  # noqa: BLE001 - every undocumented exception is a crash
            path = options.crashes / f"crash-{sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            traceback.print_exc()
            print(f"crash after {done} inputs, the input is in {path}")
            return 1
        done += 1
        if options.seconds and time.monotonic() - begun_s > options.seconds:
            break
    in_hand.unlink(missing_ok=True)
    print(f"{done} inputs, no crash, {time.monotonic() - begun_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
