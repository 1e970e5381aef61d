"""Pattern documents: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from treadle.planner.documents import store
from treadle.planner.documents.collective import Demand
from treadle.planner.documents.pattern import Pattern
from treadle.planner.errors import InputError

HEAD = "kind: pattern\nversion: 1\nname: p\n"


def load(text: str) -> Pattern:
    return store.loads(HEAD + text, "p.yaml", Pattern)


def test_counts_are_parts_by_sender_and_receiver() -> None:
    pattern = load("unit: 4KiB\ncounts: [[1, 2], [1, 0]]")
    assert pattern.collective == "alltoallv"
    assert pattern.demands == (Demand((0,), (0,)), Demand((0,), (1,)), Demand((0,), (1,)), Demand((1,), (0,)))
    assert pattern.input_bytes() == 3 * 4096


def test_pairs_and_chunks() -> None:
    assert load("pairs: [[1, 0], [0, 1]]").demands == (Demand((0,), (1,)), Demand((1,), (0,)))
    pattern = load("chunks: [{before: [2, 0], after: [1]}]")
    assert (pattern.collective, pattern.demands, pattern.input_bytes()) == ("custom", (Demand((0, 2), (1,)),), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unit: 1K", "$: found no parts, expected exactly one of counts, pairs and chunks"),
        ("pairs: [[0, 1]]\ncounts: [[1]]", "$: found counts and pairs, expected exactly one"),
        ("counts: [[0, 1], [1]]", "$.counts[1]: found 1 counts, expected 2, one for each rank"),
        ("counts: [[0, 0], [0, 0]]", "$.counts: found 0 parts in all"),
        ("counts: [[0, 99999999], [0, 0]]", "$.counts: found 99999999 parts in all"),
        ("counts: [[0, -1], [0, 0]]", "$.counts[0][1]: found -1"),
        ("pairs: [[0, 1], [0, 1]]", "$.pairs[1]: found 0 -> 1 a second time, expected each pair once"),
        ("pairs: []", "$.pairs: found 0 pairs"),
        ("pairs: [[0, 5000]]", "$.pairs[0]: found rank 5000, expected ranks below 1024"),
        ("chunks: [{before: [], after: [1]}]", "$.chunks[0].before: found no rank, expected at least one"),
        ("chunks: [{before: [0], after: [1, 1]}]", "$.chunks[0].after: found a rank twice"),
        ("pairs: [[0, 1]]\nunit: large", "$.unit: found 'large', expected a size of at least 1 byte"),
        ("pairs: [[0, 1]]\nunit: 0B", "$.unit: found '0B', expected a size of at least 1 byte"),
    ],
)
def test_refusals_name_the_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        load(text)
    assert str(refusal.value).startswith("p.yaml: ")
    assert message in str(refusal.value)
