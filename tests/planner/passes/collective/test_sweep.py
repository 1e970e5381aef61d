"""Size sweeps: the fewest ranges, within tolerance, and times that hold at every size."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.collective.build import MB, MESH, relay, relay_sketch, ring, switch
from treadle.planner.documents import store
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.selection import Entry, Selection
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.limits import Effort, Limits
from treadle.planner.passes.collective.planning import METHODS, references
from treadle.planner.passes.collective.retime import algorithm_of, resized, retimed
from treadle.planner.passes.collective.sweep import Guide, anchors, parse_sizes, segments, sweep
from treadle.planner.passes.collective.synthesis import Request

SIZES = parse_sizes("1K..16M")
TEMPLATES = {name: METHODS[name] for name in ("binomial", "all-pairs", "double-tree", "ring")}


@pytest.fixture(autouse=True)
def templates_only(monkeypatch):
    """Sweeps compare whatever the table holds; the solver's methods have tests of their own."""
    monkeypatch.setattr("treadle.planner.passes.collective.planning.METHODS", TEMPLATES)


def swept(hardware, sketch, collective="allreduce", sizes=SIZES, **more):
    inputs = references(hardware, sketch, None, {})
    guides = [Guide(0, Request(collective, hardware, sketch), inputs)]
    return sweep(guides, sizes, Effort(Limits(routing=2, scheduling=2)), **more)


def test_sizes_as_people_write_them():
    assert parse_sizes("1KiB..8KiB") == (1024, 2048, 4096, 8192)
    assert parse_sizes("3..20") == (3, 6, 12)
    assert parse_sizes("1M,4K,4096") == (4096, MB)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8K..1K", "smaller end first"),
        ("0..4", "at least 1 byte"),
        ("0", "at least 1 byte"),
        ("1..", "expected a size"),
        ("x", "expected a size"),
        ("1..999999999999999T", "over 64"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(text, reason):
    with pytest.raises(InputError, match=reason):
        parse_sizes(text)


def test_anchors_span_the_sizes():
    assert anchors([5]) == [5]
    assert anchors([1, 2]) == [1, 2]
    assert anchors(list(range(21))) == [0, 4, 8, 12, 16, 20]


@given(st.integers(1, 4), st.integers(1, 5), st.data())
@settings(max_examples=60)
def test_as_few_ranges_as_the_tolerance_allows(candidates, sizes, data):
    times = [[data.draw(st.integers(90, 115)) for _ in range(sizes)] for _ in range(candidates)]
    best = [min(row[i] for row in times) for i in range(sizes)]
    fits = [
        picks
        for picks in product(range(candidates), repeat=sizes)
        if all(times[pick][i] <= 1.05 * best[i] for i, pick in enumerate(picks))
    ]
    least = min(1 + sum(a != b for a, b in pairwise(picks)) for picks in fits)
    found = segments(times, 0.05)
    assert len(found) == least
    picks = tuple(c for c, first, last in found for _ in range(first, last + 1))
    assert picks in fits


@pytest.mark.parametrize("latency", ["serial", "pipelined"])
def test_every_entry_is_right_and_near_the_best_at_every_size(latency):
    hardware = replace(switch(6), latency=latency)
    plans, selection = swept(hardware, MESH)
    assert [selection.entries[0].min_bytes, selection.entries[-1].max_bytes] == [SIZES[0], SIZES[-1]]
    assert list(selection.problems()) == []
    assert 2 <= len(plans) <= 4
    assert store.loads(store.dumps(selection), "s", Selection) == selection
    again = {name: retimed(plan.decisions, hardware, MESH) for name, plan in plans.items()}
    for plan in plans.values():
        assert check(plan.decisions) == []
    for size in SIZES:
        entry = selection.at(size)
        time, problem = again[entry.plan.file].at(size)
        draft = again[entry.plan.file].algorithm.draft(problem, "again", "none")
        assert draft.makespan_ns == time
        assert check(decisions_of(draft, None, None)) == []
        for name in ("ring", "binomial", "all-pairs"):
            other = METHODS[name](Request("allreduce", hardware, MESH, size), Effort())
            if size in anchors(SIZES):
                assert time <= 1.05 * other.makespan_ns


def test_ranges_change_protocol_where_one_plan_for_one_size_would():
    _, selection = swept(ring(4), MESH)
    ranges = [(entry.protocol, entry.min_bytes, entry.max_bytes) for entry in selection.entries]
    assert {protocol for protocol, _, most in ranges if most <= 2**16} == {"LL"}
    assert {protocol for protocol, least, _ in ranges if least > MB} == {"Simple"}
    _, fixed = swept(ring(4), MESH, protocol="Simple", instances=2)
    assert {(entry.protocol, entry.instances) for entry in fixed.entries} == {("Simple", 2)}


def test_one_method_alone_gives_its_algorithms():
    plans, selection = swept(ring(4), MESH, method="ring")
    assert {entry.method for entry in selection.entries} == {"ring"}
    assert all(name.endswith("-ring.plan.json") for name in plans)


def test_a_plan_is_timed_again_with_its_batches():
    hardware, sketch = relay(1, 10, 5), relay_sketch(batching=True)
    draft = METHODS["milp"](Request("allgather", hardware, sketch, 1024), Effort())
    assert max(move.batch for move in draft.transfers if (move.src, move.dst) == (1, 2)) == 0
    algorithm = algorithm_of(draft.problem, draft.transfers)
    request = Request("allgather", hardware, sketch)
    assert algorithm.time_ns(draft.problem) <= draft.makespan_ns
    for size in (1, 4096, MB):
        problem = resized(algorithm, request, size)
        later = algorithm.draft(problem, "again", "none")
        assert later.makespan_ns == algorithm.time_ns(problem)
        assert check(decisions_of(later, None, None)) == []


def entry(low: int, high: int, file: str = "a.plan.json") -> Entry:
    return Entry(min_bytes=low, max_bytes=high, plan=InputRef(file=file, digest="sha256:" + "0" * 64), method="ring",
                 protocol="LL", instances=1, predicted_us=(1, 2), bound_us=(1, 2))  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ((entry(1, 5), entry(7, 9)), "$.entries[1].min_bytes"),
        ((entry(1, 5), entry(5, 9)), "$.entries[1].min_bytes"),
        ((entry(5, 4),), "$.entries[0].max_bytes"),
        ((entry(1, 5, "../a.plan.json"),), "$.entries[0].plan.file"),
        ((), "$.entries"),
    ],
)
def test_ranges_with_holes_or_overlaps_are_refused(entries, reason):
    selection = Selection(version=1, collective="allgather", ranks=2, nodes=1, tolerance=0.05, sizes=(1,), inputs={},
                          entries=entries)  # fmt: skip
    assert reason in [path for path, _, _ in selection.problems()]
