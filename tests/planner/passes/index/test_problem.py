"""Problems and workloads of an index that contradict themselves, or hold numbers that are none."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.planner.passes.index.index_plans import DRAW, PROBLEM, measurement, problem_of
from treadle.planner.documents import store
from treadle.planner.documents.plan import InputRef
from treadle.planner.errors import InputError
from treadle.planner.passes.index.configurations import FragmentedLog, GappedArray, grid, name_of_leaves
from treadle.planner.passes.index.problem import MOST_DRAWN, MOST_NS, IndexProblem, WorkloadFiles
from treadle.planner.passes.index.workload import VERSION, IndexWorkload

SHA = "sha256:" + 64 * "0"
FILES = WorkloadFiles(keys=InputRef(file="keys.npy", digest=SHA), operations=InputRef(file="ops.npy", digest=SHA))


def found_in(problem: IndexProblem) -> list[str]:
    return [f"{path}: {found}, expected {expected}" for path, found, expected in problem.problems()]


def with_candidate(**fields: Any) -> IndexProblem:
    """The problem with other fields of its best predicted candidate, which was measured."""
    candidates = [*PROBLEM.candidates]
    candidates[4] = replace(candidates[4], **fields)
    return replace(PROBLEM, candidates=tuple(candidates))


def filed(**fields: Any) -> IndexProblem:
    """Files may have any operations: deletes of keys that are there, inserts of keys that are too."""
    counts = {"bulk": 10, "lookups": 5, "inserts": 6, "deletes": 4, "scans": 3, "whole": 18, "keys_at_end": 9}
    return replace(PROBLEM, workload=FILES, **{**counts, **fields})


def test_the_grid_has_a_hundred_sound_configurations_of_different_names() -> None:
    assert len({name_of_leaves(each) for each in grid()}) == len(grid()) == 100
    assert found_in(problem_of(range(1, 101))) == []
    assert sum(isinstance(each, GappedArray) for each in grid()[:16]) == 16


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (replace(PROBLEM, candidates=(), top=0), "$.candidates: none, expected at least one"),
        (with_candidate(predicted_ns=math.nan), "$.candidates[4].predicted_ns: nan, expected a number above 0, of"),
        (with_candidate(predicted_ns=math.inf), "$.candidates[4].predicted_ns: inf, expected a number above 0"),
        (with_candidate(predicted_ns=-1.0), "$.candidates[4].predicted_ns: -1.0, expected a number above 0"),
        (with_candidate(predicted_ns=2.0**54), "predicted_ns: 1.8014398509481984e+16, expected a number above 0, of"),
        (
            with_candidate(configuration=GappedArray(most_search=math.nan, most_shifts=2)),
            "$.candidates[4].configuration.most_search: nan, expected a number above 0",
        ),
        (
            with_candidate(configuration=GappedArray(most_search=2, most_shifts=math.inf)),
            "$.candidates[4].configuration.most_shifts: inf, expected a number above 0",
        ),
        (
            with_candidate(configuration=FragmentedLog(fragment_keys=16, most_fragments=8, new_fragments=9)),
            "$.candidates[4].configuration.new_fragments: 9, expected at most the 8 of a leaf",
        ),
        (
            with_candidate(configuration=replace(grid()[0], most_search=1.0000001)),
            "$.candidates[4]: second gapped array 1/2, expected configurations that occur once",
        ),
        (
            with_candidate(measured=replace(measurement(360), windows_ns=(MOST_NS, 1, 1, 1))),
            f"$.candidates[4].measured.windows_ns: {MOST_NS + 3} ns, expected at most {MOST_NS}",
        ),
        (
            with_candidate(measured=replace(measurement(360), windows_ns=(2**62,) * 4)),
            f"$.candidates[4].measured.windows_ns: {2**64} ns, expected at most {MOST_NS}",
        ),
        (
            with_candidate(measured=replace(measurement(360), load_ns=MOST_NS + 1)),
            f"$.candidates[4].measured.load_ns: {MOST_NS + 1} ns, expected at most {MOST_NS}",
        ),
        (
            with_candidate(measured=measurement(50, windows=41)),
            "$.candidates[4].measured.windows_ns: 41 windows, expected 1 to 40, since each has an operation",
        ),
        (replace(PROBLEM, lookups=0, inserts=0, keys_at_end=100), "$.lookups: no operation at all, expected at least"),
        (replace(PROBLEM, lookups=2**62), f"$.whole: 40, expected at least the {2**62 + 20} operations of the subset"),
        (replace(PROBLEM, max_memory_ratio=math.nan), "$.max_memory_ratio: nan, expected a number above 0"),
        (replace(PROBLEM, max_memory_ratio=math.inf), "$.max_memory_ratio: inf, expected a number above 0"),
        (
            filed(inserts=0, deletes=18, lookups=0, scans=0, keys_at_end=0),
            "$.max_memory_ratio: 1.5 for no key at the end, expected keys at the end",
        ),
        (filed(keys_at_end=5), "$.keys_at_end: 5, expected 6 to 16, by loaded, inserted and deleted keys"),
        (filed(keys_at_end=17), "$.keys_at_end: 17, expected 6 to 16, by loaded, inserted and deleted keys"),
        (replace(PROBLEM, top=6), "$.candidates: 4 measurements, expected 6, with `top` 6"),
        (replace(PROBLEM, top=7), "$.candidates: 4 measurements, expected 6, with `top` 7"),
        (
            replace(PROBLEM, workload=replace(DRAW, insert_share=math.nan)),
            "$.workload.insert_share: nan, expected a number from 0 to 1",
        ),
    ],
)  # fmt: skip
def test_a_problem_that_contradicts_itself_is_refused(problem: IndexProblem, message: str) -> None:
    assert any(message in line for line in found_in(problem)), found_in(problem)


@pytest.mark.parametrize(
    "problem",
    [
        filed(),
        filed(keys_at_end=6),
        filed(keys_at_end=16),
        replace(PROBLEM, top=9, cut_short=True),
        replace(PROBLEM, lookups=10, inserts=5, keys_at_end=105),
        problem_of((2, 1), (7, 8), top=5),
        problem_of((2, 1)),
        replace(PROBLEM, workload=replace(DRAW, bulk=0), bulk=0, keys_at_end=20),
    ],
)
def test_a_sound_problem_is_accepted(problem: IndexProblem) -> None:
    assert found_in(problem) == []
    assert store.loads(store.dumps(problem), "problem.json", IndexProblem) == problem


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bulk": 0, "insert_share": 0.0}, "draw.bulk: found no key, and none is inserted, expected at least one"),
        ({"bulk": 0, "insert_share": 0.01}, "draw.bulk: found no key, and none is inserted"),
        ({"operations": MOST_DRAWN + 1}, f"draw.operations: found {MOST_DRAWN + 1}, expected at most {MOST_DRAWN}"),
        ({"bulk": MOST_DRAWN}, f"draw.bulk: found {MOST_DRAWN + 20} keys with those inserted, expected at most"),
        ({"insert_share": 1.5}, "draw.insert_share: found 1.5, expected a number of at most 1"),
        ({"skew": 3.0}, "draw.skew: found 3.0, expected a number of at most 2"),
        ({"family": "diaries"}, "draw.family: found 'diaries' (text), expected one of 'books'"),
    ],
)
def test_a_workload_that_cannot_be_drawn_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    text = msgspec.json.encode(IndexWorkload(version=VERSION, name="w", draw=replace(DRAW, **fields))).decode()
    with pytest.raises(InputError) as caught:
        store.loads(text, "w.yaml", IndexWorkload)
    assert f"w.yaml: $.{message}" in str(caught.value)


def test_people_write_a_workload_in_a_few_lines() -> None:
    text = (
        "kind: index-workload\nversion: 1\nname: w\ndraw: {family: books, bulk: 100, operations: 40, insert_share: .5}"
    )
    read = store.loads(text, "w.yaml", IndexWorkload)
    assert (read.draw.skew, read.draw.seed, read.draw.inserts) == (0, 0, 20)
