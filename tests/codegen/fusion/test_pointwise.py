"""Pointwise kernels: sizes that nothing divides, pointers that nothing aligns, tensors that were allocated apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.codegen.fusion.sessions import Session, compare, fill, integers, session, stored, wrong
from tests.planner.passes.fusion.schedule_builder import ScheduleBuilder
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.codegen.fusion.scattered import addresses, header, index_of
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion import language as cc
from treadle.planner.passes.fusion.buckets import bucket_table
from treadle.planner.passes.fusion.evaluate import evaluate, held, states
from treadle.planner.passes.fusion.program import Bindings, Program


def momentum(sliced: bool = True, names: str = "N") -> Program:
    """A stage for each dimension, in mixed precision: sums that are read, state in slices, results of whole tensors."""
    inputs, outputs = [], []
    for name in names.split():
        n = cc.dims(name)
        layout = cc.Sliced(cc.FLAT) if sliced else cc.Replicated
        end = "" if name == "N" else f"_{name}"
        g = cc.Tensor(f"g{end}", "f16", [n], layout)
        m = cc.Tensor(f"m{end}", "f32", [n], layout)
        p = cc.Tensor(f"p{end}", "f32", [n], cc.Replicated)
        scale = cc.Tensor(f"scale{end}", "f32", [cc.parts(n)], cc.Replicated)
        part = cc.Slice(p) if sliced else p
        m_ = cc.Update(m, m * 2 + cc.Cast("f32", g) * scale, name=f"m_{end}")
        inputs += [g, m, p, scale]
        outputs += [cc.Cast("f16", part - m_, name=f"out{end}"), m_]
    return cc.Execute("momentum", inputs, outputs)


def one_stage(program: Program) -> Program:
    """What belongs to one dimension in one kernel."""
    schedule = ScheduleBuilder(program)
    for target in program.updates:
        end = target.removeprefix("m")
        schedule.fuse([f"m_{end}", f"out{end}"], "ComputationFuse")
    return schedule.program


@pytest.fixture(scope="module")
def sizes() -> Lowered:
    """Stages of 203 elements, of one, which one rank has, and of none."""
    program = one_stage(momentum(names="N One Zero"))
    return lower(program, Bindings({"N": 203, "One": 1, "Zero": 0}, 3))


def test_any_number_of_elements(sizes: Lowered) -> None:
    assert len(sizes.launches) == 3
    assert compare(sizes, integers(sizes.program, sizes.bindings), orders=range(4)) == []


@pytest.fixture(scope="module")
def whole() -> Lowered:
    """A stage on whole tensors, in tensors of these sizes."""
    return lower(
        one_stage(momentum(sliced=False)), Bindings({"N": 2600}, 2, parts={"N": SIZES}), scattered=["g", "m", "p"]
    )


SIZES = (1500, 0, 1024, 10, 66)


def _bound(live: Session, move: Callable[[NDArray[Any]], NDArray[Any]]) -> list[list[NDArray[Any]]]:
    """The session's tensors at other places."""
    tensors = [[move(tensor) for tensor in rank] for rank in live.tensors]
    live.tensors = tensors
    live.bind([[tensor.ctypes.data for tensor in rank] for rank in tensors])
    return tensors


def test_pointers_without_alignment_give_the_same_numbers(sizes: Lowered) -> None:
    values = evaluate(sizes.program, sizes.bindings, integers(sizes.program, sizes.bindings))
    with session(sizes) as live:
        raw = []

        def shifted(tensor: NDArray[Any]) -> NDArray[Any]:
            memory = np.zeros(tensor.nbytes + 64, np.uint8)
            raw.append(memory)
            begin = -memory.ctypes.data % 16 + tensor.itemsize
            return memory[begin : begin + tensor.nbytes].view(tensor.dtype)

        tensors = _bound(live, shifted)
        assert all(tensor.ctypes.data % 16 for rank in tensors for tensor in rank if tensor.size)
        fill(live, values)
        assert live.run(order=3) == []
        assert wrong(live, values) == []


def test_scattered_tensors_give_the_numbers_of_whole_ones(whole: Lowered) -> None:
    program, bindings = whole.program, whole.bindings
    given = integers(program, bindings)
    values = evaluate(program, bindings, given)
    index = index_of(bucket_table(SIZES))
    cuts = np.cumsum(SIZES)[:-1]
    with session(whole) as live:
        kept, pieces = [], {}
        pointers = [[tensor.ctypes.data for tensor in rank] for rank in live.tensors]
        for rank in range(2):
            for name in ("g", "m", "p"):
                value = program.by_name[name].type
                mine = np.split(stored(held(value, bindings, values[name], rank), value.dtype).reshape(-1), cuts)
                apart = [piece.copy() for piece in mine]  # at addresses of their own
                tables = [index.start, index.page, *addresses(index, [piece.ctypes.data for piece in apart])]
                head = header(index, *(table.ctypes.data for table in tables))
                kept += [head, tables]
                pieces[rank, name] = apart
                pointers[rank][whole.places[name]] = head.ctypes.data
        live.bind(pointers)
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
    assert len(index.table) == len(addresses_)


def test_buckets_have_the_size_that_kernels_expect() -> None:
    with pytest.raises(InputError, match="found buckets of 2048 elements, expected at most 1024"):
        index_of(bucket_table([5000], limit=2048))


def test_sliced_tensors_are_not_scattered() -> None:
    with pytest.raises(InputError, match="found a scattered tensor sliced or broadcast"):
        lower(one_stage(momentum()), Bindings({"N": 40}, 2), scattered=["m"])
