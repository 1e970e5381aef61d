"""Kernels over symmetric memory, run by fibers: right and bit-equal on all ranks whatever the order, and every meeting
of the ranks is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from tests.treadle.runtime.collective.symmetric_cases import Memory
from treadle.codegen.collective.cuda import kernels
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError
from treadle.runtime.collective import symmetric
from treadle.runtime.collective.compare_native import joined
from treadle.runtime.collective.native import DTYPES, OPERATIONS
from treadle.runtime.collective.symmetric import (
    Exchange,
    SymmetricBuffers,
    SymmetricKernels,
    SymmetricRank,
    VirtualRanks,
    differs,
)
from treadle.runtime.comparison import rounding_of_sums

SHOTS = ("one-shot", "two-shot")
HALF = 4096


@pytest.fixture(scope="module")
def fibers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SymmetricKernels]:
    """The kernels as they are, compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield SymmetricKernels("fibers")


def data(ranks: int, size: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, generator=generator) * 50).to(dtype) for _ in range(ranks)]


def far(found: Tensor, expected: Tensor, inputs: Sequence[Tensor], op: str) -> bool:
    """Whether rounding does not explain a difference: sums are rounded, minima, maxima and whole numbers are not."""
    total = float(torch.stack(list(inputs)).double().abs().sum(0).max()) if expected.numel() else 0.0
    exact = op in ("min", "max") or not found.is_floating_point()
    allowed = 0.0 if exact else rounding_of_sums(len(inputs), found.dtype, total)
    return bool(((found.double() - expected.double()).abs() > allowed).any())


@pytest.mark.parametrize("multicast", [False, True], ids=["pointers", "switch"])
@pytest.mark.parametrize("shots", SHOTS)
def test_allreduce_of_every_dtype_operation_and_size(fibers: SymmetricKernels, shots: str, multicast: bool) -> None:
    for ranks in (1, 3, 8, 11):
        group = VirtualRanks(fibers, ranks, HALF, multicast=multicast)
        for seed, (dtype, op) in enumerate((dtype, op) for dtype in DTYPES for op in OPERATIONS):
            for size in (0, 1, 37, 250):
                inputs = data(ranks, size, dtype, seed)
                found = group.queue(Exchange("allreduce", shots), [each.clone() for each in inputs], op)  # type: ignore[arg-type]
                group.wait(seed)
                assert all(torch.equal(each, found[0]) for each in found)
                assert not far(found[0], joined(torch.stack(inputs), op), inputs, op), (ranks, dtype, op, size)


@pytest.mark.parametrize("multicast", [False, True], ids=["pointers", "switch"])
def test_other_collectives(fibers: SymmetricKernels, multicast: bool) -> None:
    for ranks, dtype in ((1, torch.float32), (3, torch.bfloat16), (4, torch.int32)):
        group = VirtualRanks(fibers, ranks, HALF, multicast=multicast)
        for seed, size in enumerate((1, 37, 90)):
            inputs = data(ranks, ranks * size, dtype, seed)
            scattered = group.queue(Exchange("reducescatter"), inputs, "avg")
            small = data(ranks, size, dtype, seed)
            gathered = group.queue(Exchange("allgather"), small)
            cast = group.queue(Exchange("broadcast", root=ranks - 1), [each.clone() for each in small])
            group.wait(seed)
            assert not far(torch.cat(scattered), joined(torch.stack(inputs), "avg"), inputs, "avg")
            assert all(torch.equal(each, torch.cat(small)) for each in gathered)
            assert all(torch.equal(each, small[-1]) for each in cast)


def test_tensors_that_begin_and_end_anywhere(fibers: SymmetricKernels) -> None:
    group = VirtualRanks(fibers, 3, HALF)
    for offset in (1, 3):
        whole = data(3, 60, torch.float16, offset)
        inputs = [each.clone()[offset:-1] for each in whole]
        for shots in SHOTS:
            found = group.queue(Exchange("allreduce", shots), [each.clone()[offset:-1] for each in whole], "max")  # type: ignore[arg-type]
            group.wait()
            assert all(torch.equal(each.double(), joined(torch.stack(inputs), "max")) for each in found)


def streamed(group: VirtualRanks, seed: int) -> bool:
    """Whether launches of several sizes and methods, one after the other without a wait, are all right."""
    calls = [
        ("two-shot", 250),
        ("one-shot", 3),
        ("one-shot", 200),
        ("two-shot", 90),
        ("one-shot", 250),
        ("two-shot", 17),
    ]
    right = []
    for number, (shots, size) in enumerate(calls):
        inputs = data(len(group.members), size, torch.int32, seed + number)
        expected = joined(torch.stack(inputs), "sum")
        right.append((group.queue(Exchange("allreduce", shots), inputs), expected))  # type: ignore[arg-type]
    group.wait(seed)
    return all(torch.equal(each.long(), expected) for found, expected in right for each in found)


@pytest.mark.parametrize("multicast", [False, True], ids=["pointers", "switch"])
def test_launches_follow_one_another_without_reset(fibers: SymmetricKernels, multicast: bool) -> None:
    group = VirtualRanks(fibers, 4, HALF, multicast=multicast)
    assert all(streamed(group, seed) for seed in range(30))


@pytest.mark.slow
def test_every_meeting_is_needed() -> None:
    """Each of these changes gives wrong sums in some order: no wait at the entry, none at the exit, one half for all
    launches, a number of the launch that goes up with its first block."""
    changes = {
        "if (!meet(task, visit, ENTRY)) return false;": "if (mutation != 1 && !meet(task, visit, ENTRY)) return false;",
        "if (!meet(task, visit, EXIT)) return false;": "if (mutation != 2 && !meet(task, visit, EXIT)) return false;",
        "int64_t(visit.launch & 1)": "int64_t(mutation != 3 && visit.launch & 1)",
        "block_index() ? 1 :": "mutation == 4 ? TICKETS : block_index() ? 1 :",
    }
    texts = kernels.symmetric()
    text = texts["treadle_symmetric.h"]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    exported = (
        '\nextern "C" __attribute__((visibility("default"))) int mutation;\nint mutation = 0;\nnamespace treadle {'
    )
    texts["treadle_symmetric.h"] = text.replace("\nnamespace treadle {", exported, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "symmetric", lambda: texts)
        changed = SymmetricKernels("fibers")
    mutation = ctypes.c_int.in_dll(changed._library, "mutation")
    for number in range(len(changes) + 1):
        mutation.value = number
        wrong = False
        for seed in range(40 if number else 5):
            group = VirtualRanks(changed, 4, HALF)
            try:
                wrong = wrong or not streamed(group, seed)
            except CheckFailed:
                wrong = True
        assert wrong == bool(number), number


def test_a_rank_that_does_not_come_is_named(fibers: SymmetricKernels) -> None:
    group = VirtualRanks(fibers, 3, HALF)
    for member, tensor in zip(group.members[:2], data(2, 5, torch.float32, 0), strict=True):
        fibers.start(member, Exchange("allreduce"), tensor, tensor, "sum", half=HALF)
    with pytest.raises(CheckFailed) as failure:
        group.wait()
    assert "rank 0 tb 0: waits for rank 2 at its entry" in failure.value.findings
    assert "rank 2: another rank gave it up" in failure.value.findings


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda _: Exchange("alltoall"), "found one-shot alltoall, expected one of one-shot allreduce, two-shot"),
        (lambda _: Exchange("allgather", "two-shot"), "found two-shot allgather"),
        (lambda group: group.queue(Exchange("allreduce"), [torch.zeros(2)] * 2, "prod"), "found operation 'prod'"),
        (lambda group: group.queue(Exchange("allreduce"), [torch.zeros(2).double()] * 2), "found tensors of"),
        (lambda group: group.queue(Exchange("reducescatter"), [torch.zeros(3)] * 2), "found 3 elements, expected"),
        (lambda group: group.queue(Exchange("allreduce"), [torch.zeros(2000)] * 2), "found 8000 bytes, expected"),
        (lambda group: VirtualRanks(group._kernels, 65), "found 65 ranks, expected 1 to 64"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    fibers: SymmetricKernels, make: Callable[[VirtualRanks], object], found: str
) -> None:
    with pytest.raises(InputError, match=found):
        make(VirtualRanks(fibers, 2, HALF))


def test_ranks_on_buffers_of_the_framework_that_grow(fibers: SymmetricKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(3, monkeypatch)
    monkeypatch.setattr(symmetric, "agreed", lambda work, group: work())
    monkeypatch.setattr(symmetric, "LEAST_HALF", 2048)
    monkeypatch.setattr(distributed, "get_world_size", lambda group: memory.ranks)
    monkeypatch.setattr(distributed, "get_rank", lambda group: memory.rank)

    def on_each(work: Callable[[int], Any]) -> list[Any]:
        results = []
        for rank in range(memory.ranks):
            memory.rank = rank
            results.append(work(rank))
        return results

    pools = [SymmetricBuffers(fibers, torch.device("cpu"), None) for _ in range(memory.ranks)]
    ranks = on_each(lambda rank: SymmetricRank(pools[rank], Exchange("allreduce", "two-shot")))
    for size in (100, 3000, 5):
        inputs = data(3, size, torch.int32, size)
        expected = joined(torch.stack(inputs), "sum")
        found = on_each(partial(lambda given, rank: ranks[rank](given[rank]), inputs))
        ranks[0].wait()
        assert all(torch.equal(each.long(), expected) for each in found)
        assert found[0].data_ptr() == inputs[0].data_ptr()
    assert [pool.half for pool in pools] == [16384] * 3
    assert [len(pool.members) for pool in pools] == [2] * 3


def test_without_symmetric_memory_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed._symmetric_memory as real

    monkeypatch.delattr(real, "rendezvous")
    with pytest.raises(MissingBackendError, match="found no symmetric memory in PyTorch"):
        symmetric.attached(1, torch.device("cpu"), None)


def test_a_switch_sums_floats_once_for_all_ranks() -> None:
    assert differs(Exchange("allreduce"), torch.float32)
    assert not differs(Exchange("allreduce"), torch.int32)
    assert not differs(Exchange("allreduce", "two-shot"), torch.float32)
