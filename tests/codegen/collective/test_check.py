"""The checker accepts what real users run and rejects what would hang, race or compute something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.collective import xml_simulation
from tests.codegen.collective.algorithms import Move, decide, line_alltoall, random_algorithm
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective import order
from treadle.codegen.collective.happens_before import unordered
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import BlockStep, CollectiveProgram, Place, RankProgram, Threadblock
from treadle.planner.errors import InputError


def test_every_real_file_is_accepted(data_dir) -> None:
    for path in sorted((data_dir / "msccl").glob("*/*.xml")):
        assert check_program.check(xml.parse(path.read_text(), path.name)) == [], path.name


def test_the_largest_file_is_accepted(data_dir) -> None:
    text = (data_dir / "msccl" / "rccl" / "all-reduce-ring-simple.xml").read_text()
    assert check_program.check(xml.parse(text, "ring.xml")) == []


def test_fused_rings_need_two_slots(data_dir) -> None:
    for name in ("rccl/all-reduce-ring-simple.xml", "msccl-scheduler/ndv4_ag-32m-1g.xml"):
        program = xml.parse((data_dir / "msccl" / name).read_text(), name)
        findings = check_program.check(program, fifo_depth=1)
        assert "deadlock with 1 message slot per connection: waits for room" in findings[0]


def with_step(program: CollectiveProgram, rank: int, block: int, position: int, **changes: object) -> CollectiveProgram:
    """The program with one step changed; `steps` replaces the whole list of the threadblock."""
    threadblock = program.ranks[rank].threadblocks[block]
    steps = list(threadblock.steps)
    steps[position] = replace(steps[position], **changes)
    return with_block(program, rank, block, steps=tuple(steps))


def with_block(program: CollectiveProgram, rank: int, block: int, **changes: object) -> CollectiveProgram:
    blocks = list(program.ranks[rank].threadblocks)
    blocks[block] = replace(blocks[block], **changes)
    return with_rank(program, rank, threadblocks=tuple(blocks))


def with_rank(program: CollectiveProgram, rank: int, **changes: object) -> CollectiveProgram:
    ranks = list(program.ranks)
    ranks[rank] = replace(ranks[rank], **changes)
    return replace(program, ranks=tuple(ranks))


def ring_program(ranks: int) -> CollectiveProgram:
    """Ring allreduce out of place without fused steps; threadblocks of each rank: 0 receives (reductions, then copies),
    1 sends."""
    programs = []
    for rank in range(ranks):
        chunks = [(rank - 1 - turn) % ranks for turn in range(ranks - 1)]
        receives = [BlockStep("rrc", ("i", c), ("o", c), awaited=True) for c in chunks]
        receives += [BlockStep("r", None, ("o", (c + 1) % ranks), awaited=True) for c in chunks]
        receives[-1] = replace(receives[-1], awaited=False)
        sent = [rank, *(step.dst[1] for step in receives[:-1] if step.dst)]
        sends = [BlockStep("s", ("i", rank))]
        sends += [BlockStep("s", ("o", c), depends=(0, turn)) for turn, c in enumerate(sent[1:])]
        blocks = (
            Threadblock(None, (rank - 1) % ranks, 0, tuple(receives)),
            Threadblock((rank + 1) % ranks, None, 0, tuple(sends)),
        )
        programs.append(RankProgram(ranks, ranks, 0, blocks))
    return CollectiveProgram("ring", "allreduce", tuple(programs), ranks, 1)


RING = ring_program(4)


def without(program: CollectiveProgram, rank: int, block: int, position: int) -> CollectiveProgram:
    steps = program.ranks[rank].threadblocks[block].steps
    return with_block(program, rank, block, steps=steps[:position] + steps[position + 1 :])


def swapped(program: CollectiveProgram, rank: int, block: int, first: int) -> CollectiveProgram:
    steps = list(program.ranks[rank].threadblocks[block].steps)
    steps[first], steps[first + 1] = steps[first + 1], steps[first]
    return with_block(program, rank, block, steps=tuple(steps))


def extra_block(program: CollectiveProgram, block: Threadblock) -> CollectiveProgram:
    return with_rank(program, 0, threadblocks=(*program.ranks[0].threadblocks, block))


MUTATIONS: dict[str, tuple[Callable[[], CollectiveProgram], str]] = {
    "offset out of bounds": (
        lambda: with_step(RING, 1, 1, 0, src=("i", 4)),
        "gpu 1 tb 1 step 0: type s reaches input chunk 4, the buffer has 4 chunks",
    ),
    "offset plus count out of bounds": (
        lambda: with_step(RING, 1, 0, 0, dst=("o", 3), count=2),
        "gpu 1 tb 0 step 0: type rrc reaches output chunk 4",
    ),
    "scratch that is not there": (
        lambda: with_step(RING, 0, 0, 5, dst=("s", 0)),
        "gpu 0 tb 0 step 5: type r reaches scratch chunk 0, the buffer has 0 chunks",
    ),
    "peer out of range": (lambda: with_block(RING, 2, 1, send=4), "gpu 2 tb 1: send peer 4, expected a gpu below 4"),
    "peer is itself": (lambda: with_block(RING, 2, 0, recv=2), "gpu 2 tb 0: recv peer is its own gpu"),
    "channel out of range": (
        lambda: with_block(RING, 2, 0, channel=1),
        "gpu 2 tb 0: channel 1, expected one below nchannels 1",
    ),
    "duplicate connection": (
        lambda: extra_block(RING, RING.ranks[0].threadblocks[1]),
        "gpu 0 tb 2: second threadblock with send peer 1 on channel 0, tb 1 already has that connection",
    ),
    "send without a peer": (
        lambda: with_block(RING, 3, 1, send=None),
        "gpu 3 tb 1 step 0: type s in a threadblock without a send peer",
    ),
    "receive without a peer": (
        lambda: with_block(RING, 3, 0, recv=None),
        "gpu 3 tb 0 step 0: type rrc in a threadblock without a recv peer",
    ),
    "send without a receive": (
        lambda: without(RING, 2, 0, 5),
        "gpu 1 tb 1 step 5: message from gpu 1 to gpu 2 on channel 0 is never received, it stays in flight",
    ),
    "receive without a send": (
        lambda: without(RING, 2, 1, 5),
        "gpu 3 tb 0 step 5: receives from gpu 2 to gpu 3 on channel 0 what is never sent",
    ),
    "count mismatch": (
        lambda: with_step(RING, 2, 0, 1, dst=("o", 0), src=("i", 0), count=2),
        "gpu 2 tb 0 step 1: receives 2 chunks, but message 1 from gpu 1 to gpu 2 on channel 0 has 1 (gpu 1",
    ),
    "zero chunks": (lambda: with_step(RING, 0, 1, 0, count=0), "gpu 0 tb 1 step 0: type s moves 0 chunks"),
    "no operand": (lambda: with_step(RING, 0, 1, 0, src=None), "gpu 0 tb 1 step 0: type s has no source"),
    "dependence without hasdep": (
        lambda: with_step(RING, 0, 0, 0, awaited=False),
        "gpu 0 tb 1 step 1: waits for tb 0 step 0, which never says it is done (hasdep 0)",
    ),
    "dependence on a missing threadblock": (
        lambda: with_step(RING, 0, 1, 1, depends=(9, 0)),
        "gpu 0 tb 1 step 1: waits for tb 9, the gpu has 2 threadblocks",
    ),
    "dependence on a missing step": (
        lambda: with_step(RING, 0, 1, 1, depends=(0, 17)),
        "gpu 0 tb 1 step 1: waits for tb 0 step 17, that threadblock has 6",
    ),
    "dependence on itself": (
        lambda: with_step(RING, 0, 1, 1, depends=(1, 1)),
        "gpu 0 tb 1 step 1: waits for step 1 of its own threadblock",
    ),
    "dependence left out": (
        lambda: with_step(RING, 0, 1, 1, depends=None),
        "gpu 0 tb 0 step 0: data race: writes output chunk 3 while gpu 0 tb 1 step 1 reads it",
    ),
    "reduction turned into a copy": (
        lambda: with_step(RING, 2, 0, 0, type="r"),
        "expected the sum of input chunk 1 over gpus 0-3",
    ),
    "wrong chunk sent": (lambda: with_step(RING, 2, 1, 0, src=("i", 1)), "output chunk"),
    "order of sends swapped": (lambda: swapped(RING, 0, 1, 4), "output chunk"),
    "input overwritten": (
        lambda: with_step(RING, 1, 0, 5, dst=("i", 2)),
        "gpu 1 tb 0 step 5: overwrites input chunk 2, which an out-of-place call must keep",
    ),
    "buffer size that does not fit nchunksperloop": (
        lambda: with_rank(RING, 1, input_chunks=5),
        "gpu 1: i_chunks is 5, expected 4",
    ),
    "neither in place nor out of place": (lambda: replace(RING, outofplace=False), "neither in place nor out of place"),
    "indivisible chunks": (
        lambda: replace(lower(line_alltoall()), chunks_per_loop=4),
        "algo: nchunksperloop 4 is no multiple of the 3 ranks",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_rejected_with_the_spot(name: str) -> None:
    assert check_program.check(RING) == []
    make, message = MUTATIONS[name]
    findings = check_program.check(make())
    assert any(message in finding for finding in findings), findings


def swap_pair(
    first: str, second: str, depends: dict[tuple[int, int], tuple[int, int]] | None = None
) -> CollectiveProgram:
    """Two ranks with one threadblock each that sends (s) and receives (r) in the given orders; an allgather."""

    def block(rank: int, kinds: str) -> Threadblock:
        steps = [
            BlockStep("s", ("o", rank), ("o", rank))
            if kind == "s"
            else BlockStep("r", ("o", 1 - rank), ("o", 1 - rank))
            for kind in kinds
        ]
        return Threadblock(1 - rank, 1 - rank, 0, tuple(steps))

    ranks = tuple(RankProgram(0, 2, 0, (block(rank, kinds),)) for rank, kinds in enumerate((first, second)))
    return CollectiveProgram("swap", "allgather", ranks, 2, 1, inplace=True, outofplace=False)


def test_deadlock_names_the_circle() -> None:
    assert check_program.check(swap_pair("sr", "rs")) == []
    assert check_program.check(swap_pair("rs", "rs")) == [
        "gpu 0 tb 0 step 0: deadlock with 2 message slots per connection: waits for a message of gpu 1 tb 0 step 1",
        "gpu 1 tb 0 step 0: deadlock with 2 message slots per connection: waits for a message of gpu 0 tb 0 step 1",
    ]


def test_full_queues_deadlock() -> None:
    program = swap_pair("sssrrr", "sssrrr")
    assert check_program.check(program, fifo_depth=3) == []
    assert "waits for room on its connection, until gpu 1 tb 0 step 3 receives" in check_program.check(program)[0]


def test_cyclic_dependences_are_told_apart() -> None:
    blocks = (
        Threadblock(None, None, 0, (BlockStep("cpy", ("i", 0), ("o", 0), depends=(1, 0), awaited=True, line=7),)),
        Threadblock(None, None, 0, (BlockStep("nop", count=0, depends=(0, 0), awaited=True, line=8),)),
    )
    program = CollectiveProgram("loop", "allgather", (RankProgram(1, 1, 0, blocks),), 1, 1)
    assert check_program.check(program) == [
        "gpu 0 tb 0 step 0 (line 7): cyclic dependence: waits for tb 1 step 0",
        "gpu 0 tb 1 step 0 (line 8): cyclic dependence: waits for tb 0 step 0",
    ]


def test_uninitialised_scratch_is_found() -> None:
    block = Threadblock(None, None, 0, (BlockStep("cpy", ("s", 0), ("o", 0)),))
    program = CollectiveProgram("junk", "allgather", (RankProgram(1, 1, 1, (block,)),), 1, 1)
    assert check_program.check(program)[0] == "gpu 0 tb 0 step 0: reads scratch chunk 0, which nothing wrote"


def test_double_counted_contributions_are_spelled_out() -> None:
    twice = decide("reduce", 2, [Move((0,), 1, 0, True), Move((0,), 1, 0, True)], root=0)
    assert check_program.check(lower(twice)) == [
        "gpu 0 tb 0 step 1: output chunk 0 ends as the sum of input chunk 0 over gpus 0-1, 1, "
        "expected the sum of input chunk 0 over gpus 0-1"
    ]


def test_a_root_that_the_file_does_not_say_is_found() -> None:
    for collective in ("broadcast", "reduce"):
        program = lower(random_algorithm(collective, 4, 2, 1, seed=3))
        assert check_program.check(replace(program, root=None)) == []
        assert check_program.check(replace(program, root=((program.root or 0) + 1) % 4)) != []


def test_custom_programs_are_checked_without_a_promise() -> None:
    assert check_program.check(replace(RING, collective="custom")) == []
    raced = with_step(RING, 0, 1, 1, depends=None)
    assert any("data race" in finding for finding in check_program.check(replace(raced, collective="custom")))


def test_lines_of_a_file_are_named() -> None:
    text = xml.emit(with_step(RING, 1, 1, 0, src=("i", 4)))
    line = 1 + next(number for number, row in enumerate(text.splitlines()) if 'type="s"' in row and 'srcoff="4"' in row)
    assert check_program.check(xml.parse(text, "x.xml"))[0].startswith(f"gpu 1 tb 1 step 0 (line {line}): ")


def test_many_findings_are_counted() -> None:
    program = lower(random_algorithm("allgather", 5, 8, 1, seed=1))
    broken = replace(program, ranks=tuple(replace(ranked, output_chunks=1) for ranked in program.ranks))
    findings = check_program.check(broken)
    assert len(findings) == check_program.MAX_NAMED + 1
    assert findings[-1].startswith("and ")


NUMBER = re.compile(r'(srcoff|dstoff|cnt|depid|deps|hasdep|send|recv|chan|[ios]_chunks|nchunksperloop)="(-?[0-9]+)"')
SOURCES = [
    xml.emit(lower(random_algorithm(collective, 3, 2, 1, seed=2), inplace=inplace))
    for collective in ("allgather", "reducescatter", "allreduce", "reduce")
    for inplace in (False, True)
]


@given(st.data())
def test_no_change_of_numbers_breaks_the_checker_itself(data: st.DataObject) -> None:
    """Whatever numbers stand in a file, the answer is a list of findings."""
    text = data.draw(st.sampled_from(SOURCES))
    for _ in range(data.draw(st.integers(1, 3))):
        match = data.draw(st.sampled_from(list(NUMBER.finditer(text))))
        text = f"{text[: match.start(2)]}{data.draw(st.integers(-1, 8))}{text[match.end(2) :]}"
    with suppress(InputError):
        findings = check_program.check(xml.parse(text, "changed.xml"))
        assert all(isinstance(finding, str) and "\n" not in finding for finding in findings)


def test_every_operand_that_moves_data_matters() -> None:
    """Moving any one local operand by one chunk is noticed, in all programs."""
    for text in SOURCES:
        program = xml.parse(text, "x.xml")
        for place, _, step in program.steps():
            for side, operand in (("src", step.reads[:1]), ("dst", (step.writes,))):
                if not operand or operand[0] is None or (side == "src" and step.src not in step.reads):
                    continue
                buffer, index = operand[0]
                moved = with_step(program, *place, **{side: (buffer, index + 1)})
                assert check_program.check(moved) != [], (program.name, place, side)


def local(collective: str, ranks: int, chunks: int, steps: tuple[BlockStep, ...] = ()) -> CollectiveProgram:
    """A program whose only threadblock sends and receives nothing."""
    block = (Threadblock(send=None, recv=None, channel=0, steps=steps),) if steps else ()
    parts = tuple(RankProgram(chunks, chunks, 2, block if rank == 0 else ()) for rank in range(ranks))
    return CollectiveProgram("local", collective, parts, chunks_per_loop=chunks, channels=1)


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "allreduce"])
def test_many_wrong_chunks_of_many_ranks_are_counted(collective: str) -> None:
    findings = check_program.check(local(collective, 512, 128))
    assert len(findings) == check_program.MAX_NAMED + 1
    assert "of gpu 0" in findings[0] or "over gpus 0-511" in findings[0]


def test_sums_of_sums_do_not_grow_without_end() -> None:
    copies = tuple(BlockStep("cpy", src=("i", 0), dst=("s", place)) for place in range(2))
    sums = tuple(BlockStep("re", src=("s", turn % 2), dst=("s", 1 - turn % 2)) for turn in range(200))
    findings = check_program.check(local("custom", 1, 1, copies + sums))
    assert "adds up 1597 contributions, expected at most 1024" in findings[0]


@pytest.mark.parametrize("field", ["srcoff", "dstoff", "cnt"])
def test_offsets_and_counts_beyond_a_buffer_are_named_at_once(field: str) -> None:
    text = xml.emit(local("custom", 1, 4, (BlockStep("cpy", src=("i", 1), dst=("o", 1), count=1),)))
    size = "9000000" if field == "cnt" else "1000000000000"
    findings = check_program.check(xml.parse(text.replace(f'{field}="1"', f'{field}="{size}"'), "x.xml"))
    assert "the buffer has 4 chunks" in findings[0]


def test_the_root_of_a_file_that_names_none_is_where_most_is_right() -> None:
    for collective in ("broadcast", "reduce"):
        whole = lower(random_algorithm(collective, 4, 2, 2, 7))
        assert check_program.check(replace(whole, root=None)) == []


# What the file alone does not say, and the rest of the collectives.


def rooted(collective: str, ranks: int, root: int) -> CollectiveProgram:
    """Every rank sends its chunk to the root, or gets its chunk from it; nchunksperloop is one rank's part."""
    there = collective == "gather"
    programs = []
    for rank in range(ranks):
        mine, all_ = (("i", 0), ("o", rank)) if there else (("i", rank), ("o", 0))
        copy = Threadblock(None, None, 0, (BlockStep("cpy", mine, all_),))
        if rank == root:
            others = [other for other in range(ranks) if other != root]
            blocks = tuple(
                Threadblock(None, other, 0, (BlockStep("r", None, ("o", other)),))
                if there
                else Threadblock(other, None, 0, (BlockStep("s", ("i", other)),))
                for other in others
            )
            programs.append(RankProgram(1 if there else ranks, ranks if there else 1, 0, (*blocks, copy)))
        else:
            peer = (root, None) if there else (None, root)
            step = BlockStep("s", ("i", 0)) if there else BlockStep("r", None, ("o", 0))
            programs.append(RankProgram(int(there), int(not there), 0, (Threadblock(*peer, 0, (step,)),)))
    return CollectiveProgram(collective, collective, tuple(programs), 1, 1, root=root)


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_gather_and_scatter(collective: str) -> None:
    program = rooted(collective, 4, 2)
    assert check_program.check(program) == []
    assert check_program.check(replace(program, chunks_per_loop=4)) == [], "nchunksperloop may count all parts"
    assert check_program.check(replace(program, root=None)) == [], "the root is found"
    assert check_program.check(replace(program, root=1)) != []
    wrong = with_step(program, 2, 0, 0, **({"dst": ("o", 1)} if collective == "gather" else {"src": ("i", 1)}))
    assert check_program.check(wrong) != []
    assert "nchunksperloop 3" in check_program.check(replace(program, chunks_per_loop=3))[0]


def test_a_promise_can_be_given_for_any_collective() -> None:
    for collective in ("custom", "alltoallv", "sendrecv"):
        program = replace(RING, collective=collective)
        sums = {(rank, chunk): tuple((r, chunk) for r in range(4)) for rank in range(4) for chunk in range(4)}
        assert check_program.check(program, expected=sums) == []
        sums[3, 1] = ((0, 0),)
        assert check_program.check(program, expected=sums) == [
            "gpu 3 tb 0 step 5: output chunk 1 ends as the sum of input chunk 1 over gpus 0-3, "
            "expected input chunk 0 of gpu 0"
        ]


def test_residuals_are_added_once() -> None:
    """microsoft/msccl's `ra`: the rank that has a sum adds the residuals before it sends the sum on."""
    programs = []
    for rank in range(2):
        send = Threadblock(
            1 - rank, None, 0, (BlockStep("s", ("i", 1 - rank)), BlockStep("s", ("o", rank), depends=(1, 1)))
        )
        work = (
            BlockStep("rrc", ("i", rank), ("o", rank)),
            BlockStep("ra", ("i", rank), ("o", rank), awaited=True),
            BlockStep("r", None, ("o", 1 - rank)),
        )
        programs.append(RankProgram(2, 2, 0, (send, Threadblock(None, 1 - rank, 0, work))))
    program = CollectiveProgram("residual", "allreduce", tuple(programs), 2, 1)
    assert check_program.check(program) == []
    once = with_step(program, 0, 1, 1, type="cpy", src=("o", 0))
    assert any(
        "expected the sum of input chunk 0 over gpus 0-1 and residual chunk 0" in f for f in check_program.check(once)
    )


# Large sizes.


def test_steps_of_many_chunks_deadlock_when_they_no_longer_fit() -> None:
    """Send, then receive, 8 chunks at once: fine while two slots hold them all, a deadlock beyond."""

    def block(rank: int) -> Threadblock:
        return Threadblock(
            1 - rank,
            1 - rank,
            0,
            (BlockStep("s", ("o", 8 * rank), None, 8), BlockStep("r", None, ("o", 8 - 8 * rank), 8)),
        )

    ranks = tuple(RankProgram(0, 16, 0, (block(rank),)) for rank in range(2))
    program = CollectiveProgram("swap", "allgather", ranks, 16, 1, inplace=True, outofplace=False)
    assert check_program.check(replace(program, max_bytes=16 << 19)) == []
    findings = check_program.check(replace(program, max_bytes=(16 << 19) + 16))
    named = "deadlock with 2 message slots per connection in calls of more than 8388608 bytes (set maxBytes to that)"
    assert named in findings[0]
    assert named in check_program.check(program)[0], "without a limit as well"
    assert check_program.check(replace(program, protocol="LL")) == []


def test_the_sizes_that_nobody_measured_deadlock() -> None:
    """In the measured tables the all-pairs allreduce by Simple lacks exactly the sizes at which its file deadlocks."""
    for case, times in xml_simulation.MI300X.items():
        if case[:2] != ("ar_allpair", "Simple"):
            continue
        for size, measured in zip(xml_simulation.SIZES, times, strict=True):
            program = replace(xml_simulation.program(case), max_bytes=size)
            assert (check_program.check(program) == []) == (measured is not None), (case, size)


# Scale.


def test_sixty_thousand_steps_are_accepted() -> None:
    program = ring_program(128)
    assert sum(1 for _ in program.steps()) > 60_000
    assert check_program.check(program) == []


def test_happens_before_goes_through_messages_and_dependences() -> None:
    run = order.run(RING, 2)
    first, last = Place(0, 1, 0), Place(0, 0, 5)
    assert unordered(RING, run.sequence, [(first, last)]) == [], "the chunk has come back around the ring"
    assert unordered(RING, run.sequence, [(Place(0, 1, 5), last)]) == [0], "no chain leads from the last send back"
    pairs = [(one, two) for n, one in enumerate(run.sequence) for two in run.sequence[n + 1 :]]
    alone = [pair for pair in pairs if unordered(RING, run.sequence, [pair])]
    assert [pairs[n] for n in unordered(RING, run.sequence, pairs)] == alone
