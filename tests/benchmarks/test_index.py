"""Benchmarks of the index at a tiny size: every table has its rows, and all indexes answered the same."""

from __future__ import annotations

from importlib import import_module
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.__main__ import FOLDERS
from benchmarks.index import choice, peers, turns
from benchmarks.index.pareto import front
from benchmarks.index.sizes import SIZES, main
from benchmarks.index.turns import Contender, Turns, alex
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.errors import CheckFailed, LimitError
from treadle.planner.passes.index.configurations import IndexConfiguration, grid
from treadle.planner.passes.index.families import drawn, family_keys
from treadle.planner.passes.index.operations import Operations
from treadle.planner.passes.index.problem import DrawnWorkload, Family
from treadle.runtime.index.learned_index import LearnedIndex
from treadle.runtime.index.library import COST_MODEL_ONLY, MONITOR_LOOKUPS, NO_AVX2, VIRTUAL_LEAVES
from treadle.runtime.index.measure import IndexRun

ROWS = {
    "throughput": [12, 12],
    "phases": [4],  # and one of each peer
    "pareto": [84],
    "switches": [12],
    "knobs": [3, 11, 11],
}
TINY = drawn(DrawnWorkload(family="osm", bulk=100, operations=1000, insert_share=0.5))


def test_every_benchmark_of_the_index_is_tested() -> None:
    assert set(ROWS) == set(FOLDERS["index"].split())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("throughput", "phases") else ()) for name in ROWS]
)
def test_a_benchmark_prints_its_tables(name: str) -> None:
    tables = list(import_module(f"benchmarks.index.{name}").tables(SIZES["--tiny"]))
    others = len(peers.peers()) if name == "phases" else 0
    assert [len(table.rows) for table in tables] == [rows + others for rows in ROWS[name]]
    for table in tables:
        assert all(value is not None for row in table.rows for value in row.values())


@pytest.mark.slow
def test_peers_answer_as_the_index_does() -> None:
    contenders = {name: Contender(turns.ANY, 0.5, library=each) for name, each in peers.peers().items()}
    assert "std::map" in contenders
    ran = Turns({"ALEX": alex(0.5), **contenders}, TINY, 2, 4)
    assert set(ran.runs) == {"ALEX", *contenders}
    assert (ran.bytes("std::map") or 0) >= 40 * 600
    assert ran.ratio("ALEX", "ALEX") == 1


@pytest.mark.slow
@given(
    st.sampled_from(grid()),
    st.sampled_from(get_args(Family)),
    st.integers(0, 3000),
    st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(any),
    st.sampled_from([0, MONITOR_LOOKUPS, VIRTUAL_LEAVES, NO_AVX2, COST_MODEL_ONLY]),
    st.integers(0, 1 << 32),
)
@settings(max_examples=200, deadline=None)
def test_every_configuration_answers_as_std_map(
    configuration: IndexConfiguration, family: Family, bulk: int, mix: list[float], flags: int, seed: int
) -> None:
    """Inserts, lookups, deletes and scans of keys of all families, also of keys that are not there."""
    random = np.random.default_rng(seed)
    keys = family_keys(family, bulk + 3000, seed)
    random.shuffle(keys)
    ops = random.choice(4, 8000, p=np.array(mix) / sum(mix)).astype(np.uint8)
    operations = Operations(ops, random.choice(keys, 8000), random.integers(0, 50, 8000).astype(np.uint64))
    loaded = np.sort(keys[:bulk])
    answers = []
    for library, chosen in ((peers.peers()["std::map"], 0), (None, flags)):
        with LearnedIndex(configuration, flags=chosen, library=library) as index:
            index.load(loaded, loaded)
            answers.append((index.run(operations).answers, [*index.items()]))
            assert index.broken() is None
    assert answers[0] == answers[1]


def test_other_answers_and_missing_memory_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([1, 2])
    monkeypatch.setattr(turns, "one_run", lambda *_, **__: IndexRun(1, (1,), 1, next(answers)))
    with pytest.raises(CheckFailed, match="other answers of a than of b"):
        Turns({"a": alex(0), "b": alex(1)}, TINY, 1)

    def short(*_: object, **__: object) -> IndexRun:
        raise LimitError("the index ran out of memory")

    monkeypatch.setattr(turns, "one_run", short)
    ran = Turns({"a": alex(0)}, TINY, 2)
    assert ran.per_second("a") is ran.ns("a", 0) is ran.ratio("a", "a") is ran.bytes("a") is None


def test_the_choice_is_the_fastest_of_those_that_are_predicted_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluator prefers the end of the grid, where large fragments are; it misses what is faster elsewhere."""
    monkeypatch.setattr(resources, "names", lambda _: ["any"])
    monkeypatch.setattr(store, "load", lambda *_: None)
    monkeypatch.setattr(resources, "locate", lambda *_: None)
    monkeypatch.setattr(choice, "predicted_ns", lambda *_: range(len(grid()), 0, -1))
    times = iter(range(100, 0, -1))
    monkeypatch.setattr(turns, "one_run", lambda *_, **__: IndexRun(1, (next(times),), 1, 0))
    found = choice.chosen(TINY, 0.5)
    assert found.configuration == grid()[-choice.TOP]
    assert found.missed == 91 / (91 - len(choice.SPREAD))


def test_a_point_on_the_front_is_one_that_no_other_improves() -> None:
    assert front([(1, 5), (2, 2), (3, 3), (5, 1), (2, 2), (1, 6)]) == {0, 1, 3, 4}


def test_an_unknown_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["throughput", "huge"])
    with pytest.raises(SystemExit, match="found 'huge', expected one of --tiny, --ci, --large"):
        main(lambda _: ())
