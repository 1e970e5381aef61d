"""What is written as YAML is read back as the same values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.samples import DOCUMENTS
from treadle.planner.documents import store
from treadle.planner.documents.parsing import parse
from treadle.planner.documents.yaml_text import to_yaml

TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20),
    st.sampled_from(["yes", "null", "~", "1e-3", "2024-01-01", "0x1f", "a: b", "- a", "#", "!tag", "*a", "<<", ""]),
)
NUMBERS = st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=5))
def test_values_come_back(value: dict[str, object]) -> None:
    assert parse(to_yaml(value), "here") == value


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_in_a_yaml_file_is_yaml_and_the_same(name: str, tmp_path: Path) -> None:
    document = DOCUMENTS[name]
    path = tmp_path / "document.yaml"
    store.save(document, path)
    assert not path.read_text().startswith("{")
    assert store.load_any(path) == document
