"""The tables of docs/proof.md: `python -m tests.campaign.report FILES`; `--sum` prints one line that stands for them.

In: JSON lines of seeds (`--results` of the campaign), or of sums of them.  Out: Markdown, or one JSON line.
Invariant: only what ran is in the tables; a sum of sums is the sum of their seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COUNTS = ("transactions", "changes", "records", "cuts", "visits", "starts")
NAMES = {
    "transactions": "transactions committed in PostgreSQL",
    "changes": "changes of rows",
    "records": "records read by the following reader",
    "cuts": "cuts (progress records), each compared with PostgreSQL's state",
    "visits": "reads from the first offset on, during the faults",
    "starts": "starts of cdcd",
}
RUNS = Path(__file__).with_name("runs.jsonl")
"""One sum for each run whose numbers are in docs/proof.md."""


def total(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of results."""
    found: dict[str, Any] = {"seeds": 0, "seconds": 0.0, **dict.fromkeys(COUNTS, 0)}
    struck: Counter[str] = Counter()
    in_seeds: Counter[str] = Counter()
    findings: list[str] = []
    for line in lines:
        found["seeds"] += line.get("seeds", 1)
        found["seconds"] = round(found["seconds"] + line["seconds"], 1)
        for name in COUNTS:
            found[name] += line[name]
        struck.update(line["struck"])
        in_seeds.update(line.get("in_seeds") or dict.fromkeys(line["struck"], 1))
        findings += [one if "seeds" in line else f"seed {line['seed']}: {one}" for one in line["findings"]]
    return {
        **found,
        "struck": dict(sorted(struck.items())),
        "in_seeds": dict(sorted(in_seeds.items())),
        "findings": findings,
    }


def tables(summed: dict[str, Any]) -> str:
    """Return the tables of a sum."""
    lines = [
        "| what ran | number |",
        "|---|---|",
        f"| seeds | {summed['seeds']:,} |",
        f"| hours | {summed['seconds'] / 3600:.1f} |",
        *(f"| {NAMES[name]} | {summed[name]:,} |" for name in COUNTS),
        f"| faults that struck | {sum(summed['struck'].values()):,} |",
        f"| findings | {len(summed['findings'])} |",
        "",
        "| fault | struck | in seeds |",
        "|---|---|---|",
        *(
            f"| {name.replace('_', ' ')} | {count:,} | {summed['in_seeds'][name]:,} |"
            for name, count in summed["struck"].items()
        ),
    ]
    return "\n".join(lines)


def read(files: Iterable[Path]) -> dict[str, Any]:
    """Return the sum of the lines of files."""
    return total(json.loads(line) for file in files for line in file.read_text().splitlines() if line.strip())


def main() -> int:
    """Print what the arguments select."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.report", description=__doc__)
    parser.add_argument(
        "files", type=Path, nargs="*", default=[RUNS], help="default: the runs in docs/proof.md"
    )
    parser.add_argument("--sum", action="store_true", help="print one JSON line that stands for the files")
    options = parser.parse_args()
    summed = read(options.files)
    print(json.dumps(summed) if options.sum else tables(summed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
