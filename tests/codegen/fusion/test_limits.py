"""Programs without a generated kernel are refused in one line, soon; values without a reader are still computed."""

from __future__ import annotations

import pytest

from tests.codegen.fusion.sessions import compare, integers
from tests.planner.passes.fusion.by_hand import sgd
from treadle.codegen.fusion.lower import lower
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Bindings
from treadle.runtime.fusion.build import build
from treadle.runtime.fusion.compare import compare as compare_groups


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


def test_a_state_whose_new_value_an_exchange_sends_is_stored() -> None:
    text = 'N = dims("N")\nx = Tensor("x", f32, [N], Local)\nx_ = Update(x, x * 2)\nout = AllToAll(x_)\n'
    text += 'k = fuse("AllToAllFuse", x_, out)\nprogram = Execute("sent", [x], [out])\n'
    program, bindings = parse(text, "sent"), Bindings({"N": 8}, 2)
    assert compare(lower(program, bindings), integers(program, bindings)) == []


REFUSED = {
    "v0 = AllReduce('max', a)\nout = Exp(a)\nk = fuse('ComputationFuse', v0, out)": "found v0, a AllReduce, in",
    "v0 = Gt(-2, s)\nout = b * 2\nk = fuse('ComputationFuse', v0, out)": "found v0, which is written to memory, over",
    "v0 = ~c | c\nout = b < 1\nk = fuse('ComputationFuse', v0, out)": "found _v0_1 Replicated and out At",
}


@pytest.mark.parametrize("lines", REFUSED)
def test_kernels_that_no_transformation_makes(lines: str) -> None:
    """Their operations have different elements on each rank, some of which no thread would store."""
    text = 'N = dims("N")\na = Tensor("a", f32, [N], Local)\nb = Tensor("b", i32, [N], At(0))\n'
    text += 'c = Tensor("c", i32, [N], Replicated)\ns = Scalars("s", i32)\n'
    program = parse(f'{text}{lines}\nprogram = Execute("none", [a, b, c, s], [v0, out])\n', "none")
    with pytest.raises(InputError, match=f"fuse: {REFUSED[lines]}"):
        lower(program, Bindings({"N": 10}, 3))


def test_scalars_of_all_groups_are_computed_in_every_group() -> None:
    text = 'N = dims("N")\nx = Tensor("x", f32, [N], Local, GROUP)\ns = Scalars("s", f32)\nt = s * 2\n'
    text += "far = Send(x, GroupRank(GROUP + 1, RANK))\nnear, out = x * t, far * t\n"
    program = parse(f'{text}program = Execute("scaled", [x, s], [near, out])\n', "scaled")
    bindings = Bindings({"N": 10}, 2, 3)
    lowered = lower(program, bindings)
    assert "t" in lowered.places
    assert compare_groups(build(lowered), lowered).problems == ()
