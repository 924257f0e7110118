"""What `cdcd check` says of the publication before cdcd has written a record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdcd.session.start_checks.server import check_published


@pytest.mark.parametrize(
    ("stored", "text"), [(None, "no record was written yet"), (object(), "as it was when records were last")]
)
def test_the_publication_is_compared_only_with_one_that_was_written(stored: object, text: str) -> None:
    context = SimpleNamespace(
        identities=object(),
        stored=stored,
        verdict=None,
        compare=lambda *_: [],
        sql=lambda: None,
    )
    (finding,) = check_published(cast(Any, context))
    assert (finding.level, text in finding.message) == ("ok", True)
