"""`treadle.load` reads any kind of document."""

from __future__ import annotations

from pathlib import Path

import pytest

import treadle
from tests.planner.samples import DOCUMENTS
from treadle.planner.documents import store
from treadle.planner.errors import InputError


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_file_is_loaded_as_what_it_is(kind: str, tmp_path: Path) -> None:
    store.save(DOCUMENTS[kind], tmp_path / "file.json")
    assert treadle.load(tmp_path / "file.json") == DOCUMENTS[kind]


def test_what_is_no_document_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(InputError, match=r"x\.json"):
        treadle.load(tmp_path / "x.json")
