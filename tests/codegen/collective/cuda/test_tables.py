"""The tables of the interpreter say what the program says, and join the two ends of every connection."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.collective.algorithms import random_algorithm, ring_allreduce
from treadle.codegen.collective import order
from treadle.codegen.collective.cuda import tables as cuda_tables
from treadle.codegen.collective.cuda.tables import BlockRow, StepRow, tables
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import READING, WRITING, BlockStep, CollectiveProgram, RankProgram, Threadblock
from treadle.planner import resources
from treadle.planner.errors import InputError

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


@given(seed=st.integers(0, 10**6), collective=st.sampled_from(COLLECTIVES), ranks=st.integers(2, 5))
def test_every_step_is_there_in_order(seed: int, collective: str, ranks: int) -> None:
    program = lower(random_algorithm(collective, ranks, 1, 2, seed))
    table = tables(program)
    rows = [(block, row) for block in table.blocks for row in table.steps_of(block)]
    steps = list(program.steps())
    assert len(rows) == len(steps)
    for (block, row), (place, _, step) in zip(rows, steps, strict=True):
        assert (block.rank, block.id) == place[:2]
        assert row.flow == cuda_tables.FLOWS[step.type]
        assert (row.wait_block, row.wait_step) == (step.depends or (-1, -1))
        assert row.awaited == step.awaited
        if step.type != "nop":
            assert row.chunks == step.count
        if step.type in READING:
            assert ("ios"[row.source_buffer], row.source) == step.src
        if step.type in WRITING:
            assert ("ios"[row.target_buffer], row.target) == step.dst


@given(seed=st.integers(0, 10**6), collective=st.sampled_from(COLLECTIVES), ranks=st.integers(2, 5))
def test_both_ends_of_a_connection_know_each_other(seed: int, collective: str, ranks: int) -> None:
    program = lower(random_algorithm(collective, ranks, 1, 2, seed))
    blocks = {(block.rank, block.id): block for block in tables(program).blocks}
    joined = set()
    for block in blocks.values():
        if block.send_rank >= 0:
            peer = blocks[block.send_rank, block.send_block]
            assert (peer.recv_rank, peer.recv_block, peer.recv_slots) == (block.rank, block.id, block.send_slots)
            joined.add((block.rank, peer.rank, program.ranks[block.rank].threadblocks[block.id].channel))
    assert joined == {tuple(connection) for connection in order.connections(program)}
    for rank in range(ranks):
        areas = [block.recv_slots for block in blocks.values() if block.rank == rank and block.recv_slots >= 0]
        assert sorted(areas) == list(range(len(areas)))


def test_rows_are_laid_out_as_the_structs_of_the_header() -> None:
    """The order of fields is what Python and the compiled code agree on."""
    text = (resources.folder("templates") / "cuda" / "treadle_types.h").read_text()
    for struct, row in (("Step", StepRow), ("BlockEntry", BlockRow)):
        body = re.search(rf"struct {struct} \{{(.*?)\n\}};", text, re.DOTALL)
        assert body is not None
        code = re.sub(r"//.*", "", body[1])
        fields = [name.strip() for line in re.findall(r"int32_t ([^;]*);", code) for name in line.split(",")]
        assert [name.replace("chunks", "count") for name in row._fields] == fields


def test_every_type_of_step_has_its_flow_and_its_name_in_the_header() -> None:
    text = (resources.folder("templates") / "cuda" / "treadle_types.h").read_text()
    flags = dict(re.findall(r"(RECEIVE|SEND|READ|WRITE|REDUCE) = (\d+)", text))
    assert {name: str(getattr(cuda_tables, name)) for name in flags} == flags
    steps = (resources.folder("templates") / "cuda" / "treadle_steps.h").read_text()
    names = dict(re.findall(r"\b([A-Z]+) = ([A-Z0 |]+)[,;]", steps))
    values: dict[str, int] = {}
    for name, words in names.items():
        values[name] = sum(
            int(flags.get(word, 0)) or values.get(word, 0) for word in (part.strip() for part in words.split("|"))
        )
    assert {name.lower(): value for name, value in values.items() if name.lower() in cuda_tables.FLOWS} == {
        str(name): flow for name, flow in cuda_tables.FLOWS.items()
    }


def test_copies_of_taccl_come_before_everything() -> None:
    blocks = (Threadblock(1, None, 0, (BlockStep("s", ("o", 0), None, 1), BlockStep("nop", count=0, depends=(0, 0)))),)
    sender = RankProgram(2, 2, 0, blocks, copies=((0, 0), (1, 1)))
    receiver = RankProgram(2, 2, 0, (Threadblock(None, 0, 0, (BlockStep("r", None, ("o", 0), 1),)),))
    table = tables(CollectiveProgram("copies", "custom", (sender, receiver), 2, 1))
    first, copying, _ = table.blocks
    nop, _, dependent = table.steps_of(first)
    assert (nop.flow, nop.wait_block, nop.wait_step) == (0, copying.id, 1)
    assert (dependent.wait_block, dependent.wait_step) == (0, 1)
    assert [(row.flow, row.source, row.target, row.awaited) for row in table.steps_of(copying)] == [
        (12, 0, 0, 0),
        (12, 1, 1, 1),
    ]


def test_residuals_are_refused() -> None:
    program = lower(ring_allreduce(2))
    ranked = program.ranks[0]
    block = replace(
        ranked.threadblocks[0], steps=(BlockStep("ra", ("i", 0), ("o", 0), 1), *ranked.threadblocks[0].steps)
    )
    ranks = (replace(ranked, threadblocks=(block, *ranked.threadblocks[1:])), program.ranks[1])
    with pytest.raises(InputError, match="found step type ra, expected one of nop, s, r"):
        tables(replace(program, ranks=ranks))
