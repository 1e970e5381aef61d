"""Benchmarks of the index at a tiny size: every table has its rows, and all indexes answered the same."""

from __future__ import annotations

from importlib import import_module

import pytest

from benchmarks.__main__ import FOLDERS
from benchmarks.index import peers, turns
from benchmarks.index.pareto import front
from benchmarks.index.sizes import SIZES, main
from benchmarks.index.turns import Contender, Turns, alex
from treadle.planner.errors import CheckFailed, LimitError
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.problem import DrawnWorkload
from treadle.runtime.index.measure import IndexRun

ROWS = {"throughput": [12], "phases": [5, 6], "pareto": [84], "switches": [12], "knobs": [3, 11, 11]}
TINY = drawn(DrawnWorkload(family="osm", bulk=100, operations=1000, insert_share=0.5))


def test_every_benchmark_of_the_index_is_tested() -> None:
    assert set(ROWS) == set(FOLDERS["index"].split())


@pytest.mark.parametrize("name", ROWS)
def test_a_benchmark_prints_its_tables(name: str) -> None:
    tables = list(import_module(f"benchmarks.index.{name}").tables(SIZES["tiny"]))
    for table, rows in zip(tables, ROWS[name] if len(tables) > 1 else ROWS[name][-1:], strict=True):
        assert len(table.rows) in {rows, *ROWS[name]}
        assert all(value is not None for row in table.rows for value in row.values())


def test_peers_answer_as_the_index_does() -> None:
    contenders = {name: Contender(turns.ANY, 0.5, library=each) for name, each in peers.peers().items()}
    assert "std::map" in contenders
    ran = Turns({"ALEX": alex(0.5), **contenders}, TINY, 2, 4)
    assert set(ran.runs) == {"ALEX", *contenders}
    assert (ran.bytes("std::map") or 0) >= 40 * 600
    assert ran.ratio("ALEX", "ALEX") == 1


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


def test_a_point_on_the_front_is_one_that_no_other_improves() -> None:
    assert front([(1, 5), (2, 2), (3, 3), (5, 1), (2, 2), (1, 6)]) == {0, 1, 3, 4}


def test_an_unknown_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["throughput", "huge"])
    with pytest.raises(SystemExit, match="found 'huge', expected one of tiny, ci, large"):
        main(lambda _: ())
