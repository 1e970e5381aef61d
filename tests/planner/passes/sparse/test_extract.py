"""Problems from recorded sparsity: what lies between records and beyond, shards, parts and blocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.sparse.problems import problem_with
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.sparse_costs import SparseCosts, SparseWork
from treadle.planner.documents.sparsity import FullestBlocks, FullestPart, Sparsity, TensorSparsity, UnionCount
from treadle.planner.errors import InputError
from treadle.planner.machine.gradient_links import inter_link, intra_link
from treadle.planner.passes.sparse.extract import gradient_of, problem_of
from treadle.planner.passes.sparse.planning import plan_sparse


def table(*means: tuple[int, int], **fields: Any) -> TensorSparsity:
    """A table of 100,000 rows with means by participants."""
    given = {
        "name": "table.weight", "form": "coo", "unit": "row", "units": 100_000, "width": 16, "sets": 40,
        "occurrences": 1500,
        "unions": tuple(UnionCount(participants=at, mean=mean, most=mean + 50) for at, mean in means),
    }  # fmt: skip
    return TensorSparsity(**{**given, **fields})


GROWS = table((1, 1000), (2, 1800), (4, 3240), (8, 5832))
PARTS = tuple(FullestPart(parts=parts, participants=at, mean=mean)
              for parts, at, mean in ((2, 1, 750), (4, 1, 560), (2, 4, 1944), (4, 4, 1215)))  # fmt: skip


def test_recorded_counts_are_taken_as_they_are() -> None:
    found = gradient_of(GROWS, 8, 1)
    assert [found.unions[m - 1] for m in (1, 2, 4, 8)] == [1000, 1800, 3240, 5832]
    assert 1800 < found.unions[2] < 3240
    assert found.densest == 1050
    assert not found.extrapolated


def test_beyond_the_records_counts_go_on_as_a_power_up_to_the_whole() -> None:
    found = gradient_of(GROWS, 1024, 1)
    assert found.extrapolated
    assert found.unions[15] == round(5832 * 1.8)
    assert found.unions[31] == round(5832 * 1.8**2)
    assert found.unions[-1] == 100_000


def test_fullest_parts_follow_the_recorded_skewness() -> None:
    found = gradient_of(replace(GROWS, fullest=PARTS), 4, 1)
    assert (found.even[0], found.even[3]) == (560, 1215)
    assert found.even[0] / 1000 >= found.even[1] / 1800 >= found.even[3] / 3240  # skewness falls in sums
    assert gradient_of(replace(GROWS, fullest=PARTS), 8, 1).even[0] == pytest.approx(1000 * 0.56 * 0.56 / 0.75, abs=1)


def test_without_records_of_parts_one_of_them_may_have_everything() -> None:
    assert gradient_of(GROWS, 8, 1).even == gradient_of(GROWS, 8, 1).unions
    full = gradient_of(replace(GROWS, units=5900), 8, 1)
    assert full.even[-1] == 738  # no part has more units than it covers


def test_the_shards_of_a_node_share_its_link() -> None:
    found = gradient_of(replace(GROWS, fullest=PARTS), 2, 2)
    # 2 ranks have 1,800 rows, 4 have 3,240, half of them in each shard in the mean.
    assert found.unions == (900, 1620)
    # In sums over 4 ranks 1,215 rows are in the fullest of 4 ranges, 1,944 in the fullest of 2 and 1,296 in the other.
    assert found.even[1] == pytest.approx((1215 + 1296 / 2) / 2, abs=1)
    # Memory is made for the shard with the most.
    assert 900 * 1.2 < found.densest < 900 * 1.6


def test_blocks_are_counted_in_the_fullest_range() -> None:
    blocks = tuple(FullestBlocks(block=size, parts=4, participants=at, mean=mean)
                   for size, at, mean in ((8, 1, 500), (8, 4, 1500), (32, 1, 400), (32, 4, 700)))  # fmt: skip
    found = gradient_of(replace(GROWS, blocks=blocks), 4, 1).blocks
    assert found is not None
    assert (found.size, found.push, found.pull) == (8, 500, 1500)
    assert gradient_of(GROWS, 4, 1).blocks is None


def test_one_recorded_participant_does_not_say_what_several_have_in_common() -> None:
    alone = Sparsity(version=1, name="net", ranks=1, steps=1, tensors=(table((1, 1000)),))
    with pytest.raises(InputError, match=r"of one participant for table\.weight, expected those of several"):
        problem_of(alone, hardware("cluster-10gbe"))
    assert gradient_of(table((1, 1000)), 1, 1).unions == (1000,)


def test_gradients_that_are_zero_stay_so() -> None:
    assert gradient_of(table((1, 0), (2, 0)), 3, 1).unions == (0, 0, 0)


def hardware(name: str) -> Hardware:
    return store.load(resources.locate("profiles", name), Hardware)


def test_links_and_costs_are_those_of_the_machine() -> None:
    sparsity = Sparsity(version=1, name="net", ranks=8, steps=5, tensors=(GROWS,))
    machine = hardware("hosts-2x2")
    problem = problem_of(sparsity, machine, SparseCosts(version=1, name="lab", work=SparseWork(call=9)))
    assert (problem.machines, problem.devices, problem.work.call) == (2, 2, 9)
    assert (problem.inter, problem.intra) == (inter_link(machine), intra_link(machine))
    assert plan_sparse(problem).decisions.problem.name == "net"


@st.composite
def recorded(draw: st.DrawFn) -> TensorSparsity:
    """Counts that index sets could have, with any fullest parts and blocks."""
    means = [(1, draw(st.integers(0, 3000)))]
    for _ in range(draw(st.integers(1, 4))):
        at, mean = means[-1]
        more = at * draw(st.sampled_from([2, 3]))
        means.append((more, draw(st.integers(mean, mean * more // at))))
    one = table(*means)
    parts = draw(st.lists(st.tuples(st.integers(2, 16), st.sampled_from(means), st.floats(0, 1)), max_size=4))
    fullest = tuple(
        FullestPart(parts=some, participants=at, mean=least + int((min(mean, -(-one.units // some)) - least) * share))
        for some, (at, mean), share in parts
        for least in [-(-mean // some)]
    )
    blocks = tuple(FullestBlocks(block=8, parts=each.parts, participants=each.participants, mean=each.mean)
                   for each in fullest)  # fmt: skip
    return replace(one, fullest=fullest, blocks=blocks)


@settings(max_examples=100, deadline=None)
@given(recorded(), st.integers(1, 24), st.sampled_from([1, 2, 4]))
def test_problems_are_sound_whatever_was_recorded(tensor: TensorSparsity, machines: int, devices: int) -> None:
    assert not list(tensor.problems_at("$"))
    found = gradient_of(tensor, machines, devices)
    assert not list(problem_with(found, devices=devices).problems())
    growth = [union / m for m, union in enumerate(found.unions, 1)]
    assert devices > 1 or all(after <= before + 0.5 for before, after in pairwise(growth))
