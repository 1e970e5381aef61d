"""Programs for the tests of compiled kernels: every collective, in place and out of place; and irregular ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.codegen.collective.algorithms import random_algorithm
from treadle.codegen.collective.cuda import kernels
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import BlockStep, CollectiveProgram, RankProgram, Threadblock
from treadle.runtime import native_build

FAKE = Path(__file__).parent / "fake_cuda" / "cuda_runtime.h"
COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")
SUMS = ("reducescatter", "allreduce", "reduce")


def made(collective: str, protocol: str, *, inplace: bool = False, ranks: int = 4, seed: int = 3) -> CollectiveProgram:
    """A random valid program over random trees, two chunks a part, two instances."""
    program = lower(random_algorithm(collective, ranks, 2 if collective != "alltoall" else 1, 2, seed), inplace=inplace)
    return replace(program, protocol=protocol)


def star(collective: str, *, inplace: bool = False) -> CollectiveProgram:
    """Gather to rank 1 or scatter from it, three ranks, two chunks a part, everything straight."""
    ranks, root, part = 3, 1, 2
    programs = []
    others = [rank for rank in range(ranks) if rank != root]
    for rank in range(ranks):
        large, small = ranks * part, part
        if collective == "gather":
            sizes = (small, large if rank == root else 0)
            source, target = ("i", 0), ("o", rank * part)
        else:
            sizes = (large if rank == root else 0, small)
            source, target = ("i", rank * part), ("o", 0)
        blocks = []
        if rank == root and not inplace:
            blocks.append(Threadblock(None, None, 0, (BlockStep("cpy", source, target, part),)))
        for other in others if rank == root else [root]:
            if (collective == "gather") == (rank == root):
                at = ("o", other * part if collective == "gather" else 0)
                blocks.append(Threadblock(None, other, 0, (BlockStep("r", None, at, part),)))
            else:
                at = ("i", 0 if collective == "gather" else other * part)
                blocks.append(Threadblock(other, None, 0, (BlockStep("s", at, None, part),)))
        programs.append(RankProgram(*sizes, 0, tuple(blocks)))
    return CollectiveProgram(
        name=f"star_{collective}",
        collective=collective,
        ranks=tuple(programs),
        chunks_per_loop=part,
        channels=1,
        inplace=inplace,
        outofplace=not inplace,
        root=root,
    )


def irregular() -> CollectiveProgram:
    """An alltoallv: rank 0 sends 1 chunk to rank 1 and 2 to rank 2, rank 1 sends 3 to rank 0, rank 2 nothing."""
    send, receive = BlockStep("s", ("i", 0), None, 1), BlockStep("r", None, ("o", 0), 1)
    first = RankProgram(
        3,
        3,
        0,
        (
            Threadblock(1, None, 0, (send,)),
            Threadblock(2, None, 0, (replace(send, src=("i", 1), count=2),)),
            Threadblock(None, 1, 0, (replace(receive, count=3),)),
        ),
    )
    second = RankProgram(
        3, 1, 0, (Threadblock(None, 0, 0, (receive,)), Threadblock(0, None, 0, (replace(send, count=3),)))
    )
    third = RankProgram(0, 2, 0, (Threadblock(None, 0, 0, (replace(receive, count=2),)),))
    return CollectiveProgram("irregular", "alltoallv", (first, second, third), chunks_per_loop=3, channels=1)


def copied_allgather() -> CollectiveProgram:
    """TACCL's dialect: each rank copies its own chunk before any step, and sends it on from the output."""
    ranks = []
    for rank in range(2):
        other = 1 - rank
        blocks = (
            Threadblock(other, None, 0, (BlockStep("s", ("o", rank), None, 1),)),
            Threadblock(None, other, 0, (BlockStep("r", None, ("o", other), 1, awaited=True),)),
        )
        ranks.append(RankProgram(1, 2, 0, blocks, copies=((0, rank),)))
    return CollectiveProgram("copied", "allgather", tuple(ranks), chunks_per_loop=2, channels=1)


POLLING = """
#include <sched.h>
#include <chrono>

namespace treadle {

inline uint64_t now_ns() {
    return uint64_t(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

inline void give_up(const Abort &abort) {
    set_abort(abort.word, abort.late);
    for (int i = 0; i < abort.count; ++i) set_abort(abort.others[i], abort.late);
}

}  // namespace treadle
"""
SLEEP = "fibers::World::world->sleep(address);"
POLL = """sched_yield(), yield();
        if (launch.timeout_ns && now_ns() - since > launch.timeout_ns) give_up(launch.abort);"""


def on_fake_cuda(
    *, processes: bool = False, at_once: bool = False, protocol: str = "Simple", sums: bool = True, nvlinked: int = 4
) -> Path:
    """The interpreter kernel for sums, or without them, on fibers under the CUDA platform over the stand-in runtime.

    With `processes` ranks may be processes: fibers wait by polling for what others write, with a limit as on a GPU.
    Launches run when their process waits for them, or `at_once`. NVLink joins each `nvlinked` neighbouring devices.
    """
    texts = {**kernels.headers(), FAKE.name: FAKE.read_text()}
    # Found next to the other headers, whatever CUDA toolkit the machine has.
    texts["treadle_platform_cuda.h"] = texts["treadle_platform_cuda.h"].replace(
        "#include <cuda_runtime.h>", '#include "cuda_runtime.h"'
    )
    flags = [*kernels.definitions("interpreter", protocol, sums), '-DTREADLE_PLATFORM="treadle_platform_cuda.h"']
    flags += [f"-DFAKE_NVLINKED={nvlinked}", *(["-DFAKE_AT_ONCE"] if at_once else [])]
    if processes:
        device = texts["treadle_device_fibers.h"]
        assert SLEEP in device
        device = device.replace(SLEEP, POLL).replace(
            "while (!test()) {", "const uint64_t since = now_ns();\n    while (!test()) {"
        )
        texts["treadle_device_fibers.h"] = device.replace(
            "#define TREADLE_DEVICE inline", f"{POLLING}\n#define TREADLE_DEVICE inline"
        )
    return native_build.compile_library(texts, kernels.INTERPRETER, "fibers", flags)
