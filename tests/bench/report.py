"""`python -m tests.bench.report FILE...`: the document of one or several runs of the benchmark.

In: files written by `make bench ARGS="--json FILE"`.  Out: Markdown on standard output, as docs/performance.md.
Invariant: the document contains nothing but the files' content; it marks each failed or disturbed run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.figures import HEAD as FIGURES_HEAD
from tests.bench.figures import figures, together
from tests.bench.table import (
    COPY_HEAD,
    FLOOR_HEAD,
    HEAD,
    LATENCY_HEAD,
    RESTART_HEAD,
    Summary,
    cells,
    copy_rows,
    floor_cells,
    latency_cells,
    markdown_table,
    restart_rows,
    spent_besides,
    summaries,
)

INTRODUCTION = Path(__file__).with_name("introduction.md")


def main() -> None:
    """Print the document."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.report", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    files = parser.parse_args().files
    results = [json.loads(path.read_text()) for path in files]
    sys.stdout.write(document(INTRODUCTION.read_text(), results))


def document(introduction: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole document. Pure."""
    parts = [introduction]
    if found := figures(together(results)):
        table = markdown_table(FIGURES_HEAD, [one.cells() for one in found])
        of = "of all runs together" if len(results) > 1 else "of this run"
        parts.append(
            f"## Figures\n\nThe targets, and the measurements below: medians over all rounds, {of}.\n\n{table}"
        )
    for number, result in enumerate(results, start=1):
        title = (
            f"## Run {number}, {result['began']}" if len(results) > 1 else f"## Measured {result['began']}"
        )
        parts += [title, *_sections(result)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _sections(result: Mapping[str, Any]) -> Iterator[str]:
    yield _machine(result)
    yield _runners(result)
    for name, runs in _by_case(result["runs"]).items():
        found = summaries(runs, result["limit"])
        rows = [cells(one) for one in found]
        yield f"### {name}\n\n{_about(result, name)}\n\n{markdown_table((*HEAD[:-1], 'noise'), rows)}"
        if reported := _besides(found):
            yield reported
    for name, latencies in _by_case(result["latencies"]).items():
        table = markdown_table((*LATENCY_HEAD[:-1], "noise"), [latency_cells(one) for one in latencies])
        yield f"### {name}\n\n{_about(result, name)}, from COMMIT's return to a reader\n\n{table}"
    for name, floors in _by_case(result.get("floors", [])).items():
        table = markdown_table(FLOOR_HEAD, [floor_cells(one) for one in floors])
        yield f"### {name}\n\n{_about(result, name)}, from a row's arrival to the commit's return\n\n{table}"
    for name, copies in _by_case(result.get("copies", [])).items():
        yield f"### {name}\n\n{_about(result, name)}\n\n{markdown_table(COPY_HEAD, copy_rows(copies))}"
    for name, starts in _by_case(result["restarts"]).items():
        yield f"### {name}\n\n{_about(result, name)}\n\n{markdown_table(RESTART_HEAD, restart_rows(starts))}"
    if result["failures"]:
        yield "### Failed\n\n" + "\n".join(
            f"- {one['case']}, {one['runner']}: {one['why'].splitlines()[0]}" for one in result["failures"]
        )


def _machine(result: Mapping[str, Any]) -> str:
    machine, asked = result["machine"], result["asked"]
    settings = ", ".join(f"{key}={value}" for key, value in machine["postgresql_settings"].items())
    wanted = ", ".join(f"{key} {value}" for key, value in asked.items())
    return ". ".join(
        (
            f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB of memory, "
            f"{machine['kernel']}",
            f"PostgreSQL {machine['postgresql']} ({settings})",
            f"Kafka {machine['kafka']}, one broker ({machine['kafka_jvm']}); {machine['registry']}",
            f"{result['cdcd']}, commit {machine['commit']}, Python {machine['python']}, "
            f"librdkafka {machine['librdkafka']}",
            f"Options: {wanted}.",
        )
    )


def _runners(result: Mapping[str, Any]) -> str:
    lines = []
    for name, runner in result["runners"].items():
        reported = "; ".join(f"{key} = {value}" for key, value in runner["settings"].items())
        lines.append(f"- `{name}`: {runner['about']}" + (f" ({reported})" if reported else ""))
    lines += [f"- `{name}`: {why}" for name, why in result["absent"].items()]
    return "\n".join(lines)


def _about(result: Mapping[str, Any], name: str) -> str:
    about = result["cases"][name]
    text: str = about["about"][0].upper() + about["about"][1:]
    return text + (f"; {about['rows']:,} rows" if "rows" in about else "")


def _besides(found: Sequence[Summary]) -> str:
    return "\n".join(f"- `{one.runner}` {reported}" for one in found if (reported := spent_besides(one)))


def _by_case(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in results:
        found[one["case"]].append(one)
    return found


if __name__ == "__main__":
    main()
