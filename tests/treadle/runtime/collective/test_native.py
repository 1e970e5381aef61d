"""Compiled kernels, run by fibers: right results whatever the order, wrong programs found out, hangs explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.codegen.collective.algorithms import random_algorithm, ring_allreduce
from tests.codegen.collective.mutations import with_block, with_step
from tests.treadle.runtime.collective.native_cases import COLLECTIVES, SUMS, copied_allgather, irregular, made, star
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.cuda import kernels
from treadle.codegen.collective.cuda.kernels import Kernel
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import BlockStep, CollectiveProgram
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime import native_build
from treadle.runtime.collective.compare_native import compare, random_inputs, reference
from treadle.runtime.collective.native import CompiledProgram, LaunchSettings, build

PROTOCOLS = ("Simple", "LL", "LL128")
SMALL = LaunchSettings(slot_bytes=192)
"""Slots so small that a few hundred elements take several iterations."""


@pytest.fixture(scope="module", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Libraries of these tests are built afresh, once for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(home))
        yield home


@cache
def library(
    program: CollectiveProgram, kernel: Kernel = "interpreter", settings: LaunchSettings = SMALL
) -> CompiledProgram:
    return build(program, kernel=kernel, settings=settings)


def require_right(library: CompiledProgram, **options: object) -> None:
    chosen = {"sizes": (0, 1, 7, 250), "dtypes": ("float32",), "ops": ("sum",), "seeds": 2, **options}
    for row in compare({library.program.name: library}, **chosen):
        assert row.good, row


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("inplace", [False, True], ids=["outofplace", "inplace"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_protocol_dtype_and_operation(collective: str, inplace: bool, protocol: str) -> None:
    if inplace and collective == "alltoall":
        pytest.skip("alltoall does not run in place")
    sums = collective in SUMS
    require_right(
        library(made(collective, protocol, inplace=inplace)),
        dtypes=("float32", "float16", "bfloat16", "int32") if sums else ("float32", "float16", "int64"),
        ops=("sum", "avg", "min", "max"),
    )


@pytest.mark.parametrize(
    ("collective", "protocol", "inplace"),
    [("allreduce", "Simple", False), ("allgather", "LL128", True)],
)
def test_specialised_kernels_do_the_same(collective: str, protocol: str, inplace: bool) -> None:
    program = made(collective, protocol, inplace=inplace)
    dtypes = ("float32", "float16", "bfloat16", "int32")
    require_right(library(program, "specialised"), dtypes=dtypes, ops=("sum", "avg", "min", "max"), seeds=4)


@pytest.mark.parametrize("inplace", [False, True], ids=["outofplace", "inplace"])
@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_gather_and_scatter(collective: str, inplace: bool) -> None:
    require_right(library(star(collective, inplace=inplace)), dtypes=("float32", "float16"))


def test_irregular_collectives_and_copies_of_taccl() -> None:
    for program in (irregular(), copied_allgather()):
        assert check_program.check(program) == []
        require_right(library(program), seeds=5)


def test_one_rank() -> None:
    for program in (made("allreduce", "Simple", ranks=1), made("allreduce", "Simple", ranks=1, inplace=True)):
        require_right(library(program), ops=("sum", "avg"))


def test_any_size_with_slots_of_any_size() -> None:
    for slot_bytes in (16, 176, 4096):
        settings = LaunchSettings(slot_bytes=slot_bytes, slots=2, threads=16)
        for protocol in PROTOCOLS:
            sizes = (*range(2, 20, 3), 61, 64, 120, 481)
            require_right(library(made("allreduce", protocol), settings=settings), sizes=sizes, dtypes=("float16",))


def test_slots_and_counters_are_used_again_by_later_calls() -> None:
    """Hundreds of calls of changing sizes: no flag of an old message is ever taken for a new one."""
    for protocol in PROTOCOLS:
        require_right(library(made("allreduce", protocol)), sizes=(3, 300, 1, 40), dtypes=("int32",), seeds=60)


def test_callers_tensors() -> None:
    inputs = [torch.full((4, 3), float(rank)) for rank in range(4)]
    kept = [tensor.clone() for tensor in inputs]
    out = library(made("allreduce", "Simple")).run(inputs)
    assert all(torch.equal(a, b) for a, b in zip(inputs, kept, strict=True))
    assert all(tensor.shape == (4, 3) and torch.equal(tensor, torch.full((4, 3), 6.0)) for tensor in out)
    inside = library(made("allreduce", "Simple", inplace=True)).run(inputs)
    assert [a.data_ptr() for a in inside] == [b.data_ptr() for b in inputs]
    turned = [torch.full((3, 4), 1.0).T for _ in range(4)]
    library(made("allreduce", "Simple", inplace=True)).run(turned)
    assert all(torch.equal(tensor, torch.full((4, 3), 4.0)) for tensor in turned)
    assert library(made("allgather", "LL")).run([torch.ones(2, 3)] * 4)[0].shape == (8, 3)
    assert library(made("reducescatter", "LL")).run([torch.ones(8, 3)] * 4)[0].shape == (2, 3)


def test_tensors_that_do_not_fit_are_refused() -> None:
    runner = library(made("reducescatter", "Simple"))
    for message, inputs, op in (
        ("found 2 tensors, expected one for each of 4 ranks", [torch.ones(4)] * 2, "sum"),
        ("expected a first dimension that 4 parts divide", [torch.ones(5)] * 4, "sum"),
        ("expected ranks to agree", [torch.ones(4)] * 3 + [torch.ones(8)], "sum"),
        ("found tensors of torch.float64, expected torch.float32", [torch.ones(4, dtype=torch.float64)] * 4, "sum"),
        ("found tensors of several data types", [torch.ones(4)] * 3 + [torch.ones(4, dtype=torch.int32)], "sum"),
        ("found operation 'prod', expected one of sum, avg, min, max", [torch.ones(4)] * 4, "prod"),
    ):
        with pytest.raises(InputError, match=message):
            runner.run(inputs, op)


# Wrong programs.


def broken(program: CollectiveProgram, seeds: int) -> str:
    """How the first order that shows the defect shows it; empty when none does."""
    runner = library(program)
    for seed in range(seeds):
        inputs = random_inputs(program, 100, torch.int32, seed)
        expected, _ = reference(program, inputs, "sum")
        try:
            found = runner.run(inputs, seed=seed)
        except CheckFailed:
            return "hangs"
        if any(b is not None and not torch.equal(a.long(), b.long()) for a, b in zip(found, expected, strict=True)):
            return "wrong"
    return ""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_missing_dependence_that_matters_shows_under_some_order(protocol: str) -> None:
    program = replace(lower(random_algorithm("allreduce", 3, 1, 1, 5), fuse=False), protocol=protocol)
    tried = 0
    for place, _, step in list(program.steps()):
        if step.depends is None or step.type == "nop":
            continue
        without = with_step(program, *place, depends=None)
        if any("data race" in finding or "ends as" in finding for finding in check_program.check(without)):
            tried += 1
            assert broken(without, 400), f"{program.spot(place)} waits for nothing, and no order shows it"
    assert tried >= 4


def test_swapped_steps_are_wrong_or_hang() -> None:
    program = made("allreduce", "Simple", ranks=3)
    seen = set()
    for rank, ranked in enumerate(program.ranks):
        for number, block in enumerate(ranked.threadblocks):
            for at in range(len(block.steps) - 1):
                steps = list(block.steps)
                steps[at], steps[at + 1] = steps[at + 1], steps[at]
                swapped = with_block(program, rank, number, steps=tuple(steps))
                if any("ends as" in finding or "deadlock" in finding for finding in check_program.check(swapped)):
                    seen.add(broken(swapped, 20))
    assert seen == {"wrong", "hangs"}


def cycle(depth: int) -> CompiledProgram:
    """Two ranks that both send two messages before they receive any."""

    def block(peer: int) -> tuple[BlockStep, ...]:
        sends = [BlockStep("s", ("i", chunk), None, 1) for chunk in range(2)]
        return (*sends, *(BlockStep("r", None, ("o", 2 * peer + chunk), 1) for chunk in range(2)))

    own = made("allgather", "Simple", ranks=2)
    ranks = tuple(
        replace(ranked, threadblocks=(replace(ranked.threadblocks[0], send=1 - r, recv=1 - r, steps=block(1 - r)),))
        for r, ranked in enumerate(own.ranks)
    )
    program = replace(own, ranks=tuple(replace(r, input_chunks=2, output_chunks=4) for r in ranks), chunks_per_loop=4)
    return library(program, settings=LaunchSettings(slots=depth))


def test_a_deadlock_names_what_every_block_waits_for() -> None:
    inputs = [torch.ones(8), torch.ones(8)]
    assert cycle(2).run(inputs)
    runner = cycle(1)
    for seed in range(5):
        with pytest.raises(CheckFailed, match="does not end") as caught:
            runner.run(inputs, seed=seed)
        assert caught.value.findings == (
            "gpu 0 tb 0 step 1: waits for room on its connection to gpu 1 tb 0",
            "gpu 1 tb 0 step 1: waits for room on its connection to gpu 0 tb 0",
        )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_never_comes_is_named(protocol: str) -> None:
    """A message of two chunks fewer than are received, and a dependence on the step that waits for the rest."""
    program = replace(star("gather"), protocol=protocol)
    twice = with_block(program, 1, 1, steps=(*program.ranks[1].threadblocks[1].steps * 2,))
    twice = with_step(twice, 1, 1, 1, awaited=True)
    waiting = with_block(twice, 1, 0, steps=(BlockStep("cpy", ("i", 0), ("o", 2), 2, depends=(1, 1)),))
    with pytest.raises(CheckFailed) as caught:
        library(waiting).run([torch.ones(6)] * 3)
    assert caught.value.findings == (
        "gpu 1 tb 0 step 0: waits for tb 1 step 1",
        "gpu 1 tb 1 step 1: waits for a message of gpu 0 tb 0",
    )


def test_a_connection_with_one_end_is_refused() -> None:
    silent = with_block(star("gather"), 0, 0, steps=())
    with pytest.raises(InputError, match="a connection from gpu 0 to gpu 1 on channel 0 with one end"):
        build(silent)


# Wrong kernels.


def changed(change: Callable[[dict[str, str]], None], *definitions: str) -> CompiledProgram:
    program = made("allgather", "Simple")
    texts = kernels.headers()
    change(texts)
    flags = [*kernels.definitions("interpreter", "Simple", False), *definitions]
    sound = library(program)
    path = native_build.compile_library(texts, kernels.INTERPRETER, "fibers", flags)
    return replace(sound, path=path, _sessions={})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("block, flow, step);\n        barrier();", "block, flow, step);"),
        ("if (flow & SEND && !block.failed) wait_for_room(launch, block);", ""),
    ],
    ids=["no barrier before the signal", "no wait for room"],
)
def test_a_kernel_without_its_synchronisation_is_wrong_under_some_order(before: str, after: str) -> None:
    def change(texts: dict[str, str]) -> None:
        assert before in texts["treadle_steps.h"]
        texts["treadle_steps.h"] = texts["treadle_steps.h"].replace(before, after)

    runner = changed(change)
    rows = []
    for seed in range(20):
        inputs = random_inputs(runner.program, 300, torch.int32, seed)
        expected, _ = reference(runner.program, inputs, "sum")
        try:
            found = runner.run(inputs, seed=seed)
        except CheckFailed:
            rows.append(False)
            continue
        rows.append(all(torch.equal(a.long(), b) for a, b in zip(found, expected, strict=True) if b is not None))
    assert not all(rows)


def test_the_portable_switch_of_fibers_does_the_same() -> None:
    portable = changed(lambda texts: None, "-DTREADLE_UCONTEXT")
    require_right(portable, dtypes=("int32",), seeds=3)
    assert portable.path != library(portable.program).path


# Sessions.


def test_ranks_on_several_devices_are_separate_launches() -> None:
    """On fibers, devices are only numbers: the driver groups ranks by them as it does GPUs."""
    program = made("allreduce", "Simple")
    runner = library(program)
    inputs = random_inputs(program, 50, torch.int32, 0)
    together = runner.run(inputs)
    session = runner.open([0, 0, 1, 2])
    assert all(
        torch.equal(a, b)
        for a, b in zip(runner._call(session, dict(enumerate(inputs)), "sum", 1), together, strict=True)
    )
    with pytest.raises(InputError, match="ranks on one device must be neighbours"):
        runner.open([0, 1, 0, 1])
    with pytest.raises(InputError, match="expected a power of two of slots"):
        replace(runner, settings=LaunchSettings(slots=3)).open([0] * 4)


def test_sessions_of_single_ranks_meet_through_handles() -> None:
    """What processes with a GPU each do, in one process: share, attach, launch, wait."""
    program = made("allreduce", "LL128", inplace=True)
    runner = library(program)
    sessions = [runner.open([0 if each == rank else -1 for each in range(4)]) for rank in range(4)]
    for rank, session in enumerate(sessions):
        for other, peer in enumerate(sessions):
            if other != rank:
                session.attach(other, peer.share(other))
    for turn in range(3):
        tensors = [torch.full((99,), rank + turn, dtype=torch.int32) for rank in range(4)]
        for rank, session in enumerate(sessions):
            runner._call(session, {rank: tensors[rank]}, "sum", turn, wait=False)
        for session in sessions:
            session.wait()
        assert all(torch.equal(tensor, torch.full((99,), 6 + 4 * turn, dtype=torch.int32)) for tensor in tensors)


def test_a_session_with_a_missing_rank_says_so() -> None:
    runner = library(made("allreduce", "Simple", inplace=True))
    session = runner.open([0, 0, 0, -1])
    with pytest.raises(InputError, match="rank 3 is not attached yet"):
        runner._call(session, {rank: torch.ones(8) for rank in range(3)}, "sum", 0)


def test_a_large_ring() -> None:
    """Sixteen ranks, four instances: 64 threadblocks, 512 fibers."""
    program = lower(ring_allreduce(16, instances=4))
    require_right(library(program), sizes=(1, 1000), dtypes=("int32",))


def test_programs_of_others_run_as_they_are(data_dir: Path) -> None:
    """Hand-written, generated and merged MSCCL XML of up to 564 threadblocks and 11,904 steps."""
    files = sorted((data_dir / "msccl").rglob("*.xml"))
    assert files
    for file in files:
        program = xml.parse(file.read_text(), file.name)
        for inplace in (False, True):
            if program.inplace if inplace else program.outofplace:
                one = replace(program, inplace=inplace, outofplace=not inplace)
                require_right(
                    build(one, settings=LaunchSettings(slot_bytes=4096)), sizes=(1, 1000), dtypes=("int32",), seeds=1
                )
