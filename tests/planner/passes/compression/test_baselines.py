"""Baselines are what their names say, and nothing that a problem does not allow."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from tests.planner.passes.compression.instances import random_problem
from tests.planner.passes.compression.one_link import NAME, STEPS, letters_of, problem_of
from tests.planner.passes.compression.test_espresso import OFFLOAD, THREE
from treadle.planner.passes.compression.baselines import baselines, grouped_baselines, upper_bound_ns
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.timeline_of import time_ns


def test_the_systems_on_one_link() -> None:
    evaluator = Evaluator(problem_of(THREE))
    found = baselines(evaluator)
    assert {title: letters_of(groups) for title, groups in found.items() if title[0].isupper()} == {
        "FP32": "nnn",
        "HiTopKComm": "ggg",
        "HiPress": "ggg",  # 1 + 1 < 3 and 1 + 2 < 6, though ncg is better than all three
        "BytePS-Compress": "ccc",
    }
    assert evaluator.time(found["HiTopKComm"]) == 11
    assert {group.steps for group in found["everything, flat allgather"]} == {STEPS["g"]}
    assert set(letters_of(found["host only"])) <= {"n", "c"}
    assert set(letters_of(found["device only"])) <= {"n", "g"}
    assert "n" not in letters_of(found["all compression"])
    assert "alltoall and alltoall" not in found


@pytest.mark.parametrize("seed", range(6))
def test_all_are_plans_of_the_problem(seed: int) -> None:
    random = Random(seed)
    problem = replace(random_problem(random, 4), compressions=seed % 3)
    evaluator = Evaluator(problem)
    for title, groups in {**baselines(evaluator), **grouped_baselines(evaluator)}.items():
        assert [group.first for group in groups] == [0, *(group.last + 1 for group in groups[:-1])], title
        assert groups[-1].last == 3
        assert evaluator.time(groups) == time_ns(problem, groups)
        encodings = max(sum(step.startswith("compress@") for step in group.steps) for group in groups)
        assert encodings <= seed % 3, title


def test_buckets_and_even_splits_are_the_best_of_theirs() -> None:
    """Compression costs the same for any size: two groups are best, the last of one gradient."""
    case = replace(problem_of(OFFLOAD), pack=None)
    found = grouped_baselines(Evaluator(case))
    assert [group.last for group in found["GRACE"]] == [0, 1, 2, 3]
    assert [group.last for group in found["even split"]] == [1, 3]
    assert [group.last for group in found["buckets"]] == [3]
    assert {group.compressor for group in found["buckets, FP32"]} == {None}
    limited = grouped_baselines(Evaluator(replace(case, group_bytes=16 * 4)))
    assert "buckets" not in limited
    assert [group.last for group in limited["even split"]] == [1, 3]


def test_the_upper_bound_has_the_wire_but_no_work_of_compression() -> None:
    """The last of four gradients is ready after 8, and takes 2 compressed."""
    assert upper_bound_ns(problem_of(OFFLOAD), NAME) == 10
