"""The same individuals come out of one process, of several, and of a Dask cluster."""

from __future__ import annotations

import os
import random
from functools import partial

import numpy as np
import pytest

from tests.planner.passes.swap import cases
from treadle.planner.errors import InputError, MissingBackendError
from treadle.planner.passes.swap.arrays import Arrays, arrays_of
from treadle.planner.passes.swap.layout import needs
from treadle.planner.passes.swap.search import executors
from treadle.planner.passes.swap.search.executors import executor
from treadle.planner.passes.swap.search.generations import Evolution, GeneticParameters, evolve
from treadle.planner.passes.swap.search.individual import Individual, SearchSpace

EFFORT = GeneticParameters(population=8, generations=4, temperature=0.1, seed=3)


def distance(arrays: Arrays, individual: Individual) -> int | None:
    """A fitness without a planner: far from the reverse of all operators, and from three classes of equal counts."""
    order = int(np.abs(individual.order[::-1] - np.arange(len(individual.order))).sum())
    return 1000 + order + 7 * abs(int(individual.classes.max()) - 3) + int(np.ptp(individual.counts))


def deadly(home: int, arrays: Arrays, individual: Individual) -> int | None:
    if os.getpid() != home:
        os._exit(9)
    return distance(arrays, individual)


def space(fitness=distance) -> SearchSpace:
    problem = cases.random_problem(random.Random(5), ops=12, slack=0.5)
    arrays = arrays_of(problem)
    start = Individual(np.arange(12), np.ones(len(arrays.sizes), np.int64), np.array([20]))
    return SearchSpace(arrays, partial(fitness, arrays), start, np.unique(needs(arrays), axis=0), problem.arena_bytes)


def searched(where: str | None, workers: int, fitness=distance) -> Evolution:
    with executor(space(fitness), workers, where, lambda: False) as evaluate:
        return evolve(space(fitness), EFFORT, evaluate)


def same(one: Evolution, other: Evolution) -> bool:
    assert one.best is not None
    assert other.best is not None
    genes = zip(one.best.individual, other.best.individual, strict=True)
    return one.log == other.log and all(np.array_equal(a, b) for a, b in genes)


@pytest.fixture
def always_send(monkeypatch):
    monkeypatch.setattr(executors, "SMALL", 0)


def test_two_processes_find_what_one_finds(always_send):
    here = searched(None, 1)
    assert len(here.log) == EFFORT.generations + 1
    assert here.log[-1].best_ns < here.log[0].best_ns
    assert same(here, searched(None, 2))


def test_workers_that_die_lose_nothing(always_send):
    assert same(searched(None, 1), searched(None, 2, partial(deadly, os.getpid())))


def test_a_dask_cluster_finds_the_same():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "protocol": "tcp"}
    with distributed.LocalCluster(**options, dashboard_address=None) as cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        assert same(searched(None, 1), searched(f"dask://{address}", 1))


@pytest.mark.parametrize("where", ["dask://", "spark://host:1", "host:1"])
def test_other_addresses_are_refused(where):
    with pytest.raises(InputError, match="expected dask://HOST:PORT or dask://local"):
        searched(where, 1)


def test_without_dask_the_way_to_install_it_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(MissingBackendError, match=r"pip install 'treadle\[dask\]'"):
        searched("dask://local", 1)


def test_a_search_that_is_stopped_keeps_its_best():
    calls = []

    def stop() -> bool:
        calls.append(None)
        return len(calls) > 13

    with executor(space(), 1, None, stop) as evaluate:
        outcome = evolve(space(), EFFORT, evaluate)
    whole = searched(None, 1)
    assert outcome.stopped
    assert not whole.stopped
    assert outcome.best is not None
    assert outcome.log[0] == whole.log[0]
    assert outcome.log[-1].best_ns >= whole.log[-1].best_ns
