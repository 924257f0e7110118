"""`python -m tests.docs` writes the pages that are generated from the code."""

from __future__ import annotations

from pathlib import Path

from tests.docs.made import MADE

FOLDER = Path(__file__).parents[2] / "docs"

for name, page in MADE.items():
    (FOLDER / name).write_text(page())
