"""What no kernel is generated for is told in one line, and soon; what nobody reads is made all the same."""

from __future__ import annotations

import pytest

from codegen.fusion.lower import lower
from planner.errors import InputError
from planner.fusion.parsing import parse
from planner.fusion.program import Bindings
from tests.planner.fusion.by_hand import sgd


def test_channels() -> None:
    with pytest.raises(InputError, match="found 1000000 channels, expected at most 32"):
        lower(sgd("fused"), Bindings({"N": 10}, 2), channels=10**6)


def test_views_among_outputs() -> None:
    text = 'N = dims("N")\ng = Tensor("g", f32, [N], Local)\ns = AllReduce("+", g)\nout = Slice(s)\n'
    program = parse(f'{text}program = Execute("view", [g], [out])\n', "view")
    with pytest.raises(InputError, match="found the output out, a view of s, expected one that is computed"):
        lower(program, Bindings({"N": 10}, 2))


def test_values_that_nobody_reads() -> None:
    text = 'N = dims("N")\ng = Tensor("g", f32, [N], Replicated)\na = g * 2\nout = g + 1\n'
    program = parse(f'{text}program = Execute("idle", [g], [out])\n', "idle")
    lowered = lower(program, Bindings({"N": 10}, 2))
    assert [kernel.name for launch in lowered.launches for kernel in launch] == ["a", "out"]
    assert [buffer.name for buffer in lowered.buffers] == ["g", "a", "out"]
