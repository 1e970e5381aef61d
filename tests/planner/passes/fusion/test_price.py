"""Prices: against formulas by hand, against what is counted, and what must be dearer than what."""

from __future__ import annotations

from math import ceil

import pytest

from benchmarks.fusion.schedules import EVERYTHING, optimizer, pipeline, program, tail
from tests.planner.machine.machines import shipped
from treadle.planner.errors import InputError
from treadle.planner.machine.collectives import Movement, Tuning
from treadle.planner.passes.fusion.counts import counts
from treadle.planner.passes.fusion.enumerate import enumerate_schedules
from treadle.planner.passes.fusion.price import StagePrice, overlapped, price
from treadle.planner.passes.fusion.program import Bindings
from treadle.planner.passes.fusion.stages import stages
from treadle.planner.passes.fusion.work import work_of

RING = Tuning(algorithms=("ring",))


@pytest.mark.parametrize(("size", "protocol"), [(2**10, "LL"), (2**30, "Simple")])
def test_protocols_by_size(size, protocol):
    priced = price(program("adam"), Bindings({"N": size}, 256), shipped("dgx2", 16), RING)
    assert priced.stages[0].config is not None
    assert priced.stages[0].config.protocol == protocol


def test_the_winner_depends_on_the_size():
    """AR-Adam is best up to 2^16 and fuse(RS-Adam-AG) from 2^17 on (CoCoNet, figure of section 6.1)."""
    made, machine = optimizer("adam"), shipped("dgx2", 16)
    best = []
    for exponent in range(10, 31):
        bindings = Bindings({"N": 2**exponent}, 256)
        best.append(min(made, key=lambda name: price(made[name], bindings, machine, RING).total_us))
    assert best == ["AR-Opt"] * 7 + ["fuse(RS-Opt-AG)"] * 14


@pytest.mark.parametrize(("name", "limit"), [("sgd", 20), ("adam_f32", 40)])
def test_bytes_are_what_is_counted(name, limit):
    """All elements of these programs have four bytes, and no kernel of theirs has phases."""
    bindings = Bindings({"N": 48}, 3)
    for found in enumerate_schedules(program(name), EVERYTHING, limit=limit).schedules:
        for stage, counted in zip(stages(found.program), counts(found.program).stages, strict=True):
            assert work_of(found.program, stage, bindings).memory == 4 * counted.traffic.value(bindings)


def test_a_kernel_in_phases_reads_twice():
    """LAMB on slices: the second phase needs p again, and u, which is kept in memory; the norms are one message."""
    fused = optimizer("lamb")["fuse(RS-Opt-AG)"]
    bindings = Bindings({"N": 1600}, 16)
    (stage,) = stages(fused)
    work, part = work_of(fused, stage, bindings), 100
    reads = 2 * 1600 + (4 + 4 + 4) * part + (4 + 4) * part
    writes = 2 * 1600 + (4 + 4 + 4) * part + 4 * part
    assert (work.loaded, work.stored) == (reads, writes)
    assert work.small == (Movement("AllReduce", 8),)


def test_a_table_of_buckets_is_read():
    fused = optimizer("adam")["fuse(RS-Opt-AG)"]
    (stage,) = stages(fused)
    apart = Bindings({"N": 4096}, 4, parts={"N": (1500, 2596)})
    more = work_of(fused, stage, apart).loaded - work_of(fused, stage, Bindings({"N": 4096}, 4)).loaded
    assert more == 12 * (2 + 3), "one entry of 12 bytes for each bucket of the whole tensor, which it reduces"


def test_collectives_take_multiprocessors_from_a_gemm():
    machine, made = shipped("dgx2").without_library, tail("mlp")
    bindings = Bindings({"B": 8, "S": 1024, "H": 3072}, 16)
    alone_us = price(made["MM; fuse(RS-C-AG)"], bindings, machine, RING).stages[0].compute_us
    overlap = price(made["ol(MM,fuse(RS-C-AG))"], bindings, machine, RING)
    assert overlap.stages[1].config is not None
    held = overlap.stages[1].config.channels
    tiles = 8 * 1024 // 128 * (3072 // 128)
    assert overlap.stages[0].compute_us == pytest.approx(alone_us * ceil(tiles / (80 - held)) / ceil(tiles / 80))
    assert overlap.total_us < price(made["MM; fuse(RS-C-AG)"], bindings, machine, RING).total_us
    assert overlap.total_us > max(part.total_us for part in overlap.stages)


@pytest.mark.parametrize("n", range(2, 17))
def test_overlap_in_units(n):
    """GEMM of n units and ring of 2 (n - 1) without latency: what the model of unit times says of a matched order."""
    gemm = StagePrice("", "", 0, body_us=n, head_us=1, tail_us=1)
    reduced = StagePrice("", "", 0, body_us=2 * (n - 1), head_us=n - 1, tail_us=n - 1)
    assert overlapped([gemm, reduced]) == 2 * n - 1


def test_the_order_of_the_pipelines_schedules():
    made, machine = pipeline(), shipped("dgx2", 16)
    bindings = Bindings({"B": 2, "S": 2048, "H": 12288}, 16, 16)
    times = [price(schedule, bindings, machine, RING).total_us for schedule in made.values()]
    assert times == sorted(times, reverse=True)
    assert times[0] > 5 * times[1], "a replicated value crosses once for each rank"


def test_the_search_never_loses_by_more_choice():
    made, machine = tail("attention"), shipped("dgx2")
    bindings = Bindings({"B": 1, "S": 33, "H": 80}, 7)
    for schedule in made.values():
        assert price(schedule, bindings, machine).total_us <= price(schedule, bindings, machine, RING).total_us


def test_no_way_to_run():
    with pytest.raises(InputError, match="found nothing that runs AllReduce on 256 ranks"):
        price(program("adam"), Bindings({"N": 8}, 256), shipped("dgx2", 16), Tuning(algorithms=("all-pairs",)))
    with pytest.raises(InputError, match="expected at most the 16"):
        price(program("adam"), Bindings({"N": 8}, 17), shipped("dgx2"))
