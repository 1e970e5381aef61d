"""Volume, traffic, state and launches of every schedule of the hand-worked tables, exactly."""

# ruff: noqa: F403, F405 (programs are written as programs are)
from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest

from tests.planner.passes.fusion.by_hand import SCHEDULES, adam, attention, by_hand, pipeline, sgd
from treadle.fusion import *
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.counts import counts, total
from treadle.planner.passes.fusion.dims import Dim
from treadle.planner.passes.fusion.expressions import Expression
from treadle.planner.passes.fusion.program import Bindings

TWO = Bindings({"N": 4, "B": 1, "S": 2, "H": 4}, ranks=2)

SGD = {
    "ar": (2, "5N", 20),
    "rs ag c": (3, "5N+2N/n", 24),
    "rs c ag": (3, "2N+5N/n", 18),
    "fused": (1, "2N+N/n", 10),
    "fused rs": (2, "2N+3N/n", 14),
    "fused ag": (2, "2N+3N/n", 14),
}


@pytest.mark.parametrize("schedule", SGD)
def test_the_table_of_the_sgd_step(schedule: str) -> None:
    launches, traffic, number = SGD[schedule]
    counted = counts(sgd(schedule))
    assert (counted.launches, str(counted.traffic), counted.traffic.value(TWO)) == (launches, traffic, number)
    assert (str(counted.volume), counted.volume.value(TWO)) == ("2N-2N/n", 4)
    assert counted.state.value(TWO) == 4


ATTENTION = {
    "ar+": (3, "5B*H*S+H", 44),
    "rs ag c+": (4, "5B*H*S+2B*H*S/n+H", 52),
    "rs c ag+": (4, "2B*H*S+5B*H*S/n+H", 40),
    "fused+": (2, "2B*H*S+B*H*S/n+H", 24),
    "fused": (2, "2B*H*S+B*H*S/n+H", 24),
}


@pytest.mark.parametrize("schedule", ATTENTION)
def test_the_table_of_the_attention_tail(schedule: str) -> None:
    launches, traffic, number = ATTENTION[schedule]
    counted = counts(attention(schedule))
    after = total(stage.traffic for stage in counted.stages if stage.kind != "matmul")
    assert (counted.launches, str(after), after.value(TWO)) == (launches, traffic, number)
    assert counted.volume.value(TWO) == 8


def test_a_matmul_of_slices_loads_slices_and_stores_the_whole_partial_product() -> None:
    matmul = counts(attention("ar")).stages[0]
    assert (str(matmul.loads), str(matmul.stores)) == ("B*H*S/n+H*H/n", "B*H*S")


ADAM = {
    "ar": ("2N-2N/n", 4, "9N", 36, "3N", 12),
    "rs ag c": ("2N-2N/n", 4, "9N+2N/n", 40, "3N", 12),
    "rs c ag": ("4N-4N/n", 8, "4N+11N/n", 38, "3N", 12),
    "rs c agm": ("3N-3N/n", 6, "3N+10N/n", 32, "2N+N/n", 10),
    "rs c agv": ("3N-3N/n", 6, "3N+10N/n", 32, "2N+N/n", 10),
    "rs c agmv": ("2N-2N/n", 4, "2N+9N/n", 26, "N+2N/n", 8),
    "fused": ("2N-2N/n", 4, "2N+5N/n", 18, "N+2N/n", 8),
}


@pytest.mark.parametrize("schedule", ADAM)
def test_the_table_of_adam(schedule: str) -> None:
    counted = counts(adam(schedule))
    found = [(str(of), of.value(TWO)) for of in (counted.volume, counted.traffic, counted.state)]
    assert [x for pair in found for x in pair] == list(ADAM[schedule])


PIPELINE = {
    "ar c p": (4, 0, 4),
    "ar cp": (4, 0, 4),
    "rs ag c p": (4, 0, 4),
    "rs ag cp": (4, 0, 4),
    "rs c ag p": (4, 0, 4),
    "fused p": (4, 0, 4),
    "ar c ag p": (6, 0, 4),
    "ar c p ag": (4, 2, 2),
    "ar cp ag": (4, 2, 2),
    "rs c p ag": (2, 2, 2),
    "rs cp ag": (2, 2, 2),
}


@pytest.mark.parametrize("schedule", PIPELINE)
def test_the_table_of_the_pipeline(schedule: str) -> None:
    four = Bindings({"B": 1, "S": 2, "H": 2}, ranks=2, groups=2)
    counted = counts(pipeline(schedule))
    found = counted.volume_in(0).value(four), counted.volume_in(1).value(four), counted.between.value(four)
    assert found == PIPELINE[schedule]
    assert counted.volume.value(four) == sum(PIPELINE[schedule][:2])


def test_the_tables_leave_no_schedule_out() -> None:
    tables = {"sgd extended": SGD, "adam": ADAM, "pipeline": PIPELINE}
    for fixture, table in tables.items():
        assert set(table) == set(SCHEDULES[fixture][1])


def test_sliced_state_takes_the_bytes_of_a_slice() -> None:
    """For 3.9 billion parameters, 256 ranks keep 4 bytes of each and 12 bytes of its slice; unsliced it is 16."""
    big = Bindings({"N": 3_900_000_000}, ranks=256)
    N = dims("N")
    g, ph = Tensor("g", f16, [N], Local), Tensor("ph", f16, [N], Replicated)
    p, m, v = (Tensor(name, f32, [N], Sliced()) for name in ("p", "m", "v"))
    rs = ReduceScatter("+", g)
    m_ = Update(m, m + Cast(f32, rs))
    v_ = Update(v, v + Cast(f32, rs) * Cast(f32, rs))
    p_ = Update(p, p - m_ / Sqrt(v_))
    ph_ = Update(ph, Cast(f16, p_))
    ag = AllGather(ph_)
    step = Execute("mixed", [g, p, ph, m, v], [ag])
    state = [of for of in counts(step).memory if of.role == "state"]
    state_bytes = sum(ceil(of.elements.value(big)) * of.dtype_bytes for of in state)
    assert state_bytes == 2 * 3_900_000_000 + 12 * ceil(3_900_000_000 / 256)
    kept = {of.name: (of.role, str(of.elements)) for of in counts(step).memory}
    assert kept == {
        "g": ("input", "N"),
        "ph": ("state", "N"),
        "p": ("state", "N/n"),
        "m": ("state", "N/n"),
        "v": ("state", "N/n"),
    }


def test_a_norm_of_slices_sends_its_partial_results() -> None:
    N = dims("N")
    x = Tensor("x", f32, [N], Sliced())
    each, whole = Norm(x, per="tensor"), Norm(x)
    out = x / each / whole
    program = Execute("norms", [x], [out])
    bindings = Bindings({"N": 10}, ranks=4, parts={"N": (3, 3, 4)})
    assert counts(program).volume.value(bindings) == 2 * Fraction(3, 4) * (3 + 1)


def test_a_transfer_is_counted_apart_and_a_value_that_stays_in_its_kernel_not_at_all() -> None:
    apart, together = counts(pipeline("ar c p")), counts(pipeline("ar cp"))
    whole = Expression.of(Dim(("B", "H", "S")))
    assert apart.between == together.between == whole
    assert apart.traffic - together.traffic == whole.scaled(2)


def test_expressions_add_up_and_print_as_in_the_tables() -> None:
    n = Dim(("N",))
    some = Expression.of(n).scaled(2) + Expression.of(n, share=1).scaled(5)
    assert str(some) == "2N+5N/n"
    assert str(some - some) == "0"
    assert str(some - Expression.of(n).scaled(3)) == "-N+5N/n"
    assert str(Expression.of(7).shared().shared().scaled(Fraction(1, 2))) == "7/2/n^2"
    assert some.value(Bindings({"N": 10}, ranks=3)) == Fraction(110, 3)
    with pytest.raises(InputError, match="dimension 'N' without a value"):
        some.value(Bindings({}, ranks=3))


@pytest.mark.parametrize("fixture", ["sgd extended", "attention apart", "adam"])
def test_no_schedule_is_cheaper_than_the_fused_one(fixture: str) -> None:
    """Fusing everything never sends, moves or launches more."""
    by_name = {name: counts(program) for name, program in by_hand(fixture).items()}
    fused = by_name.get("fused") or by_name["fused+"]
    for other in by_name.values():
        assert other.launches >= fused.launches
        assert other.traffic.value(TWO) >= fused.traffic.value(TWO)
        assert other.volume.value(TWO) >= fused.volume.value(TWO)
