"""Pointwise kernels: sizes that nothing divides, pointers that nothing aligns, tensors that were allocated apart."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.fusion.lower import lower
from codegen.fusion.scattered import addresses, header, index_of
from planner.errors import InputError
from planner.fusion import language as cc
from planner.fusion.buckets import bucket_table
from planner.fusion.evaluate import evaluate, held, states
from planner.fusion.program import Bindings, Program
from planner.fusion.schedule import Schedule
from tests.codegen.fusion.sessions import Session, compare, fill, integers, session, stored, wrong


def momentum(sliced: bool = True) -> Program:
    """One stage in mixed precision: a sum that is read, state in slices, a result written into a whole tensor."""
    n = cc.dims("N")
    layout = cc.Sliced(cc.FLAT) if sliced else cc.Replicated
    g = cc.Tensor("g", "f16", [n], layout)
    m = cc.Tensor("m", "f32", [n], layout)
    p = cc.Tensor("p", "f32", [n], cc.Replicated)
    scale = cc.Tensor("scale", "f32", [cc.parts(n)], cc.Replicated)
    part = cc.Slice(p) if sliced else p
    m_ = cc.Update(m, m * 2 + cc.Cast("f32", g) * scale)
    out = cc.Cast("f16", part - m_)
    return cc.Execute("momentum", [g, m, p, scale], [out, m_])


def one_stage(program: Program) -> Program:
    """All of a program in one kernel."""
    schedule = Schedule(program)
    names = [node.name for node in program.nodes if not node.anonymous and node.op != "Slice"]
    schedule.fuse(names, "ComputationFuse")
    return schedule.program


@pytest.mark.parametrize(("size", "ranks"), [(0, 2), (1, 3), (203, 3)])
def test_any_number_of_elements(size: int, ranks: int) -> None:
    lowered = lower(one_stage(momentum()), Bindings({"N": size}, ranks))
    assert len(lowered.launches) == 1
    assert compare(lowered, integers(lowered.program, lowered.bindings), orders=range(4)) == []


def test_a_kernel_that_takes_too_much_is_noticed() -> None:
    """The comparison itself: a kernel that goes too far does not pass."""
    lowered = lower(one_stage(momentum()), Bindings({"N": 203}, 3))
    values = evaluate(lowered.program, lowered.bindings, integers(lowered.program, lowered.bindings))
    text = lowered.text.replace("using Slice = BlockSlice<1, 203, 1, 3>", "using Slice = BlockSlice<1, 206, 1, 3>")
    assert text != lowered.text
    with session(lowered, changed={"schedule.cu": text}) as live:
        fill(live, values)
        assert live.run() or wrong(live, values)


@pytest.fixture(scope="module")
def whole() -> Any:
    """A stage on whole tensors, in tensors of these sizes."""
    return lower(
        one_stage(momentum(sliced=False)), Bindings({"N": 2600}, 2, parts={"N": SIZES}), scattered=["g", "m", "p"]
    )


SIZES = (1500, 0, 1024, 10, 66)


def _bound(live: Session, move: Callable[[NDArray[Any]], NDArray[Any]]) -> list[list[NDArray[Any]]]:
    """The session's tensors at other places."""
    tensors = [[move(tensor) for tensor in rank] for rank in live.tensors]
    live.tensors = tensors
    pointers = [tensor.ctypes.data for rank in tensors for tensor in rank]
    assert live.library.treadle_fusion_bind(live.handle, (ctypes.c_void_p * len(pointers))(*pointers)) == 0
    return tensors


def test_pointers_without_alignment_give_the_same_numbers() -> None:
    lowered = lower(one_stage(momentum()), Bindings({"N": 203}, 3))
    values = evaluate(lowered.program, lowered.bindings, integers(lowered.program, lowered.bindings))
    with session(lowered) as live:
        raw = []

        def shifted(tensor: NDArray[Any]) -> NDArray[Any]:
            memory = np.zeros(tensor.nbytes + 64, np.uint8)
            raw.append(memory)
            begin = -memory.ctypes.data % 16 + tensor.itemsize
            return memory[begin : begin + tensor.nbytes].view(tensor.dtype)

        tensors = _bound(live, shifted)
        assert all(tensor.ctypes.data % 16 for rank in tensors for tensor in rank)
        fill(live, values)
        assert live.run(order=3) == []
        assert wrong(live, values) == []


def test_scattered_tensors_give_the_numbers_of_whole_ones(whole: Any) -> None:
    program, bindings = whole.program, whole.bindings
    given = integers(program, bindings)
    values = evaluate(program, bindings, given)
    index = index_of(bucket_table(SIZES))
    cuts = np.cumsum(SIZES)[:-1]
    with session(whole) as live:
        kept, pieces = [], {}
        pointers = [tensor.ctypes.data for rank in live.tensors for tensor in rank]
        for rank in range(2):
            for name in ("g", "m", "p"):
                value = program.by_name[name].type
                mine = np.split(stored(held(value, bindings, values[name], rank), value.dtype).reshape(-1), cuts)
                apart = [piece.copy() for piece in mine]  # at addresses of their own
                tables = [index.start, index.page, *addresses(index, [piece.ctypes.data for piece in apart])]
                head = header(index, *(table.ctypes.data for table in tables))
                kept += [head, tables]
                pieces[rank, name] = apart
                pointers[rank * len(whole.buffers) + whole.places[name]] = head.ctypes.data
        live.library.treadle_fusion_bind(live.handle, (ctypes.c_void_p * len(pointers))(*pointers))
        scale = whole.places["scale"]
        for rank in range(2):
            live.tensors[rank][scale][:] = np.asarray(values["scale"][0, rank], np.float32)
        assert live.run(order=1) == []
        for rank in range(2):
            np.testing.assert_array_equal(np.concatenate(pieces[rank, "m"]), states(program, values)["m"][0, rank])
            np.testing.assert_array_equal(live.tensors[rank][whole.places["out"]], values["out"][0, rank])


def test_a_table_says_where_every_element_lies() -> None:
    index = index_of(bucket_table(SIZES))
    addresses_, offsets = addresses(index, [100, 200, 300, 400, 500])
    found = []
    for element in range(sum(SIZES)):
        bucket = int(index.page[element // 1024])
        while index.start[bucket + 1] <= element:
            bucket += 1
        found.append((int(addresses_[bucket]), int(offsets[bucket] + element - index.start[bucket])))
    expected = [(100 * (tensor + 1), place) for tensor, size in enumerate(SIZES) for place in range(size)]
    assert found == expected
    assert index.table.entry_bytes == 12 * len(addresses_)


def test_buckets_have_the_size_that_kernels_expect() -> None:
    with pytest.raises(InputError, match="found buckets of 2048 elements, expected at most 1024"):
        index_of(bucket_table([5000], limit=2048))


def test_sliced_tensors_are_not_scattered() -> None:
    with pytest.raises(InputError, match="found a scattered tensor sliced or broadcast"):
        lower(one_stage(momentum()), Bindings({"N": 40}, 2), scattered=["m"])
