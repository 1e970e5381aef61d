"""Kernels of a schedule on fibers, by themselves: every rank's blocks of all kernels launched together, in an order that
a seed chooses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.fusion.kernel import Buffer, KernelText
from planner import resources
from planner.fusion.program import Dtype
from treadle.runtime.native_build import compile_library

ARENA_BYTES = 1 << 22
NUMPY: dict[Dtype, Any] = {
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
    "i64": np.int64,
}
REPORTS_PER_KERNEL = 256
REPORT = np.dtype(
    {
        "names": ["awaited", "peer", "index", "expected", "found"],
        "formats": [np.int32, np.int32, np.int64, np.uint64, np.uint64],
        "offsets": [0, 4, 8, 16, 24],
        "itemsize": 128,
    }
)
ARENA_OFFSET = 1 << 18
"""Where kernels may keep what is theirs; reports lie before it."""

DRIVER = """
namespace treadle {{
struct Entry {{ FusedKernel kernel; int blocks; }};
static const Entry ENTRIES[] = {{ {entries} }};
}}
extern "C" __attribute__((visibility("default"))) int treadle_go(
    void *const *const *buffers, char *const *arenas, int ranks, const int *together, int count, uint64_t epoch,
    uint64_t seed, uint64_t step, uint64_t order) {{
    using namespace treadle;
    uint32_t abort = 0;
    fibers::World world;
    for (int i = 0; i < count; ++i) {{
        const Entry entry = ENTRIES[together[i]];
        Task task{{}};
        task.buffers = buffers; task.arenas = arenas; task.abort = &abort; task.ranks = ranks; task.blocks = entry.blocks;
        task.first_report = together[i] * {reports}; task.epoch = epoch; task.seed = seed; task.step = step;
        world.queue(entry.blocks * ranks, LINE_THREADS, [task, entry] {{ entry.kernel(task); }});
    }}
    return world.run(order);
}}
"""


@dataclass
class Kernels:
    """Compiled kernels and the memory of all ranks: `tensors` by rank and number of buffer."""

    library: Any
    buffers: Sequence[Buffer]
    ranks: int
    epoch: int = 0
    tensors: list[list[NDArray[Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tensors = [
            [np.zeros(each.elements, NUMPY[each.dtype]) for each in self.buffers] for _ in range(self.ranks)
        ]
        self.arenas = [np.zeros(ARENA_BYTES // 8, np.uint64) for _ in range(self.ranks)]

    def run(self, *launches: Sequence[int], order: int = 0, seed: int = 0, step: int = 0) -> bool:
        """Launch kernels by number, those of one launch together; whether all came to their end."""
        row = ctypes.c_void_p * len(self.buffers)
        rows = [row(*(tensor.ctypes.data for tensor in rank)) for rank in self.tensors]
        table = (ctypes.c_void_p * self.ranks)(*(ctypes.addressof(each) for each in rows))
        arenas = (ctypes.c_void_p * self.ranks)(*(arena.ctypes.data for arena in self.arenas))
        ended = True
        for together in launches:
            numbers = (ctypes.c_int * len(together))(*together)
            numeric = map(ctypes.c_uint64, (self.epoch, seed, step, order))
            ended &= bool(self.library.treadle_go(table, arenas, self.ranks, numbers, len(together), *numeric))
        self.epoch += 1
        return ended

    def reports(self, rank: int) -> list[Any]:
        """What blocks of a rank waited for in vain."""
        start = 128  # the counts
        raw = self.arenas[rank].view(np.uint8)[start:ARENA_OFFSET]
        found = raw[: raw.size // 128 * 128].view(REPORT)
        return [each for each in found if each["awaited"]]


def compiled(
    texts: Sequence[KernelText], buffers: Sequence[Buffer], ranks: int, blocks: int = 2, flags: Sequence[str] = ()
) -> Kernels:
    """The kernels, numbered in their order; those that take any number of blocks get `blocks`."""
    library = ctypes.CDLL(str(compile_library(sources(texts, blocks), "schedule.cu", "fibers", list(flags))))
    library.treadle_go.restype = ctypes.c_int
    return Kernels(library, buffers, ranks)


def sources(texts: Sequence[KernelText], blocks: int = 2) -> dict[str, str]:
    """All files of the compilation, of which schedule.cu is the main one."""
    files = {
        path.name: path.read_text()
        for folder in ("cuda", "fusion")
        for path in (resources.folder("templates") / folder).glob("*.h")
    }
    entries = ", ".join(f"{{{text.name}, {text.blocks or blocks}}}" for text in texts)
    kernels = "\n".join(text.text for text in texts)
    includes = "".join(
        f'#include "{name}"\n'
        for name in sorted(files)
        if name.startswith(("treadle_gemm", "treadle_overlap", "treadle_coll"))
    )
    files["schedule.cu"] = (
        f"{includes}namespace treadle {{\n{kernels}\n}}\n#ifndef __CUDACC__{DRIVER.format(entries=entries, reports=REPORTS_PER_KERNEL)}#endif\n"
    )
    return files
