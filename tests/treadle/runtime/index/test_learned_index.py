"""The index from Python: what a dictionary answers, clear refusals, memory that is freed once."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.planner.errors import InputError, LimitError
from treadle.planner.passes.index.configurations import FragmentedLog, GappedArray, IndexConfiguration
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.operations import Operations
from treadle.planner.passes.index.problem import DrawnWorkload
from treadle.runtime.index import library
from treadle.runtime.index.learned_index import SCANNED, LearnedIndex

CONFIGURATIONS: list[IndexConfiguration] = [
    GappedArray(most_search=1, most_shifts=2),
    GappedArray(most_search=8, most_shifts=128),
    FragmentedLog(fragment_keys=4, most_fragments=4, new_fragments=2),
    FragmentedLog(fragment_keys=64, most_fragments=128, new_fragments=8),
]
LAST = (1 << 64) - 1


@pytest.fixture(params=CONFIGURATIONS, ids=str)
def index(request: pytest.FixtureRequest) -> LearnedIndex:
    return LearnedIndex(request.param)


keys = st.one_of(st.integers(0, 30), st.integers(0, LAST), st.integers(LAST - 30, LAST), st.sampled_from([1 << 63]))
steps = st.lists(st.tuples(st.sampled_from(["insert", "erase", "lookup", "scan"]), st.lists(keys, max_size=40)))


@given(st.sampled_from(CONFIGURATIONS), st.sets(keys), steps)
@settings(max_examples=150, deadline=None)
def test_any_operations_are_answered_as_by_a_dictionary(
    configuration: IndexConfiguration, loaded: set[int], steps: list[tuple[str, list[int]]]
) -> None:
    index = LearnedIndex(configuration)
    expected = {key: key ^ 5 for key in sorted(loaded)}
    index.load(list(expected), list(expected.values()))
    for number, (word, batch) in enumerate(steps):
        match word:
            case "insert":
                new = []
                for key in batch:
                    new.append(key not in expected)
                    expected.setdefault(key, number)
                assert index.insert(batch, [number] * len(batch)).tolist() == new
            case "erase":
                assert index.erase(batch).tolist() == [expected.pop(key, None) is not None for key in batch]
            case "lookup":
                payloads, found = index.lookup(batch)
                assert payloads.tolist() == [expected.get(key, 0) for key in batch]
                assert found.tolist() == [key in expected for key in batch]
            case "scan":
                start, count = min(batch, default=0), len(batch)
                after = sorted(key for key in expected if key >= start)[:count]
                assert index.scan(start, count)[0].tolist() == after
        assert index.broken() is None
    assert list(index.items()) == sorted(expected.items())
    assert len(index) == len(expected)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("family", ["books", "osm", "fb", "exponential"])
def test_workloads_leave_the_keys_that_a_set_has(index: LearnedIndex, family: Any, share: float) -> None:
    workload = drawn(DrawnWorkload(family=family, bulk=2000, operations=20_000, insert_share=share))
    index.load(workload.keys, workload.payloads)
    times, _ = index.run(workload.operations, 7)
    assert len(times) == 7
    added = workload.operations.keys[workload.operations.ops == 1]
    assert np.array_equal(np.fromiter(index, np.uint64), np.sort(np.concatenate([workload.keys, added])))
    assert index.broken() is None
    assert index.bytes >= 16 * len(index)
    assert set(index.counts()) == set(library.COUNTS)


def test_all_indexes_answer_the_same(index: LearnedIndex) -> None:
    """Deletes and scans, too; the reference is a small gapped array."""
    random = np.random.default_rng(1)
    operations = Operations(
        random.integers(0, 4, 5000).astype(np.uint8),
        random.integers(0, 500, 5000).astype(np.uint64),
        random.integers(0, 20, 5000).astype(np.uint64),
    )
    with LearnedIndex(GappedArray(most_search=1, most_shifts=2)) as reference:
        assert index.run(operations, 3).answers == reference.run(operations, 5).answers
        assert list(index.items()) == list(reference.items())


def test_single_keys_are_read_as_from_a_mapping(index: LearnedIndex) -> None:
    index.insert(LAST, 7)
    index.insert([0], [8])
    assert (index[LAST], index[np.uint64(0)]) == (7, 8)
    assert LAST in index
    assert 1 not in index
    with pytest.raises(KeyError, match=r"^1$"):
        index[1]
    assert index.insert(LAST, 9).tolist() == [False]
    assert index[LAST] == 7


def test_ascending_keys_that_no_line_fits_do_not_stay_in_one_gapped_array() -> None:
    """Room behind the keys does not make such inserts cheap, so that the leaf must be split in the end."""
    exponents = np.repeat(np.arange(20, 60, dtype=np.uint64), 1000)
    steps = np.tile(np.arange(1000, dtype=np.uint64), 40)
    keys = (np.uint64(1) << exponents) + (steps << (exponents - np.uint64(10)))
    index = LearnedIndex(CONFIGURATIONS[1], insert_share=1, flags=library.COST_MODEL_ONLY)
    assert index.insert(keys, keys).all()
    assert index.counts()["leaves"] > 1
    assert index.broken() is None


def test_items_are_read_in_parts(index: LearnedIndex) -> None:
    keys = np.arange(2 * SCANNED, dtype=np.uint64)
    index.load(keys, keys)
    assert list(index) == keys.tolist()


BAD_KEYS: dict[str, Any] = {
    "negative": -1,
    "negative in a list": [1, -1],
    "negative in an array": np.array([1, -1]),
    "too large": [1 << 64],
    "mixed": [1 << 63, -1],
    "float": 1.0,
    "floats": np.array([1.0]),
    "text": "1",
    "nothing": None,
    "truth": [True],
    "table": np.zeros((2, 2), np.uint64),
    "several lengths": [[1], [2, 3]],
}


@pytest.mark.parametrize("bad", BAD_KEYS.values(), ids=BAD_KEYS)
def test_what_is_no_key_is_refused(index: LearnedIndex, bad: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: index.lookup(bad),
        lambda: index.insert(bad, 1),
        lambda: index.erase(bad),
        lambda: index.load(bad, bad),
    ]
    for call in calls:
        with pytest.raises(InputError, match=r"^found .*expected"):
            call()


@pytest.mark.parametrize("bad", [-1, 1 << 64, 1.0, "1", None, True])
def test_what_is_no_single_key_is_refused(index: LearnedIndex, bad: Any) -> None:
    for call in (lambda: index[bad], lambda: bad in index, lambda: index.scan(bad, 1)):
        with pytest.raises(InputError, match=r"^found .*expected an integer from 0 to 2\^64 - 1"):
            call()


def test_what_does_not_fit_is_refused(index: LearnedIndex) -> None:
    with pytest.raises(InputError, match="found keys to load that do not ascend"):
        index.load([2, 1], [0, 0])
    with pytest.raises(InputError, match="do not ascend"):
        index.load([1, 1], [0, 0])
    with pytest.raises(InputError, match="found 2 payloads of 1 keys"):
        index.insert([1], [2, 3])
    index.load([1], [1])
    with pytest.raises(InputError, match="found an index of 1 keys, expected an empty one"):
        index.load([2], [2])
    with pytest.raises(InputError, match="found -1 keys to scan"):
        index.scan(0, -1)
    with pytest.raises(InputError, match=r"found 1\.5 keys to scan"):
        index.scan(0, 1.5)  # type: ignore[arg-type]
    none = np.zeros(0, np.uint64)
    with pytest.raises(InputError, match="in 2 windows"):
        index.run(Operations(none.astype(np.uint8), none, none), 2)
    one = np.zeros(1, np.uint64)
    with pytest.raises(InputError, match="operations from 0 to 4"):
        index.run(Operations(np.array([4], np.uint8), one, one))
    with pytest.raises(InputError, match=r"found 1.5 as the share of inserts"):
        LearnedIndex(CONFIGURATIONS[0], insert_share=1.5)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (FragmentedLog(fragment_keys=3, most_fragments=8, new_fragments=2), "fragment_keys: found 3, expected"),
        (FragmentedLog(fragment_keys=8, most_fragments=8, new_fragments=9), "more new fragments than a leaf may have"),
        (GappedArray(most_search=-1.0, most_shifts=2), "most_search: found -1.0, expected"),
        (GappedArray(most_search=1, most_shifts=float("nan")), "found nan, expected a finite number"),
    ],
)
def test_a_configuration_that_no_plan_may_have_is_refused(bad: IndexConfiguration, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LearnedIndex(bad)


def test_nothing_at_all_is_fine(index: LearnedIndex) -> None:
    index.load([], [])
    assert [each.tolist() for each in index.lookup([])] == [[], []]
    assert index.insert(np.zeros(0), []).tolist() == []
    assert [each.tolist() for each in index.scan(0, 100)] == [[], []]
    assert list(index) == []
    assert 5 not in index


def test_an_index_is_freed_once(index: LearnedIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = library.load_library()
    freed = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(shared, name)

        def treadle_index_free(self, handle: int) -> None:
            freed.append(handle)
            shared.treadle_index_free(handle)

    with LearnedIndex(CONFIGURATIONS[0], library=Watched()) as one:
        one.insert(1, 1)
    one.close()
    assert len(freed) == 1
    with pytest.raises(InputError, match="the index is closed"):
        one.lookup(1)
    with pytest.raises(InputError, match="the index is closed"):
        len(one)
    other = LearnedIndex(CONFIGURATIONS[0], library=Watched())
    for copied in (copy.copy, pickle.dumps):
        with pytest.raises(InputError, match="copied or pickled"):
            copied(other)
    del other
    gc.collect()
    assert len(freed) == 2


def test_threads_may_share_an_index(index: LearnedIndex) -> None:
    def work(first: int) -> None:
        for start in range(first, 40_000, 4000):
            batch = np.arange(start, start + 1000, dtype=np.uint64)
            assert index.insert(batch, batch).all()
            assert index.lookup(batch)[1].all()

    threads = [Thread(target=work, args=(1000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(index) == 40_000
    assert index.broken() is None


def test_a_failed_allocation_is_an_error(index: LearnedIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short:
        def __getattr__(self, name: str) -> Any:
            results = {"load": 3, "insert": library.NO_MEMORY, "run": 1}
            result = results.get(name.removeprefix("treadle_index_"))
            return getattr(index._library, name) if result is None else lambda *_: result

    short = LearnedIndex(CONFIGURATIONS[0], library=Short())
    for call in (lambda: short.load([1], [1]), lambda: short.insert(1, 1)):
        with pytest.raises(LimitError, match=r"the index ran out of memory while it (loaded|inserted) 1 key"):
            call()
