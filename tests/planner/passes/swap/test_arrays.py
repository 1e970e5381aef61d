"""The problem as arrays."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from tests.planner.passes.swap import cases
from treadle.planner.errors import InputError
from treadle.planner.passes.swap.arrays import arrays_of, predecessors


def test_figure_4_3_in_arrays():
    """Tensors W1 W2 W3 A1 A2 A3; op2 reads A1 W2, overwrites W2 and makes A2."""
    problem = cases.figure_4_3(written=True)
    a = arrays_of(problem)
    assert a.use[a.use_ptr[1] : a.made_ptr[1]].tolist() == [3, 1]
    assert a.use[a.made_ptr[1] : a.use_ptr[2]].tolist() == [4]
    assert a.writes[a.use_ptr[1] : a.use_ptr[2]].tolist() == [False, True, False]
    assert (a.pred.tolist(), np.diff(a.pred_ptr).tolist()) == ([0, 1], [0, 1, 1])
    assert (a.succ.tolist(), np.diff(a.succ_ptr).tolist()) == ([1, 2], [1, 1, 0])
    assert a.written.tolist() == [True, True, False, False, False, False]
    assert a.persistent.tolist() == a.on_host.tolist() == [True, True, True, False, False, False]
    assert (a.sizes.tolist(), a.size.tolist(), a.host_bytes) == ([1], [0] * 6, -1)


def test_an_explicit_wait_is_a_predecessor():
    assert predecessors(cases.belady((1, 2, 1), 1)) == [[], [0], [1]]


def test_numbers_that_outgrow_64_bits_are_refused():
    problem = cases.figure_4_3()
    slow = structs.replace(problem, machine=structs.replace(problem.machine, copy_ns=2**61))
    with pytest.raises(InputError, match=r"take 5\.07e\+19 ns in all"):
        arrays_of(slow)
    many = structs.replace(problem, tensors=problem.tensors * 2**18)
    with pytest.raises(InputError, match=r"1572864 tensors, expected fewer than 1048576"):
        arrays_of(many)
