"""How long generated kernels take for a tile of a matrix product, from what a multiprocessor does in a clock cycle.

A threadblock of templates/fusion/treadle_gemm.h, one on each multiprocessor, makes a tile of the result from panels of
both operands that it loads into shared memory, then multiplies, then loads the next ones. Nothing hides the loads:

    tile     = panels * (load + multiply) + write
    load     = latency + bytes / L2 rate + bytes / shared memory rate + 2 barriers
    multiply = max(multiply-adds / their rate, wavefronts of shared memory)

On tensor cores (16-bit floats, tiles of whole 32 x 32 squares) a warp reads four fragments of 16 x 16, four wavefronts
each, for four multiplications of them; else each thread reads a column of `down` and a row of `across` elements, a
wavefront each, for down * across multiply-adds. What a clock cycle brings follows from the peak rates of the profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from treadle.planner.machine.dtypes import BYTES, Dtype

Tile = tuple[int, int]
"""Rows and columns of the result that a threadblock makes at once."""

LARGEST = 128
MIN_TILES = 64
"""Least number of tiles; with fewer, smaller tiles are taken: a machine has about a hundred processors."""

WARP = 32
SQUARE, FRAGMENT = 32, 16
TENSOR_DEPTH, SCALAR_DEPTH = 32, 16
GRID = (16, 32)
"""Rows and columns of threads, as in treadle_gemm.h."""
LATENCY = 300.0
"""Cycles from L2 or memory: 200 to 480 (Abdelkhalik et al., Demystifying the Nvidia Ampere Architecture through
Microbenchmarking and Instruction-level Analysis; Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture via Microbenchmarking)."""
BARRIER = 30.0
"""Cycles of a barrier of 512 threads, assumed."""
L2_BYTES, SHARED_BYTES = 64.0, 128.0
"""Per multiprocessor and cycle (the same papers)."""
FASTEST_CLOCK = 2500.0
"""Cycles per us. A peak that needs more with 64 lanes has 128 of them, as GeForce cards and Hopper do."""
CONVOLVED = 16.0
"""Multiply-adds of a multiprocessor and cycle in a generated Conv2d, which loads two elements from L1 for each."""


@dataclass(frozen=True)
class Product:
    """A MatMul, or a Conv2d as one, on the rank that has most of it: [rows, depth] times [depth, columns]."""

    op: str
    dtype: Dtype
    rows: int
    depth: int
    columns: int

    @property
    def flops(self) -> float:
        """Two for each multiplication."""
        return 2.0 * self.rows * self.depth * self.columns


@dataclass(frozen=True)
class Multiprocessor:
    """`clock` in cycles per us; `lanes` are multiply-adds in a cycle by dtype, `tensor` those of tensor cores on 16-bit
    floats, 0 where generated kernels use none (before compute capability 8.0)."""

    clock: float
    lanes: Mapping[Dtype, float]
    tensor: float


def multiprocessor(peaks: Mapping[str, float], count: int) -> Multiprocessor | None:
    """One of `count` with these peak rates, FLOP/s by dtype name of a profile; None without that of float32."""
    share = {name: peak / 2e6 / count for name, peak in peaks.items()}
    if "float32" not in share:
        return None
    lanes = 64 if share["float32"] / 64 <= FASTEST_CLOCK else 128
    clock = share["float32"] / lanes
    scalar: dict[Dtype, float] = {"f16": lanes, "bf16": lanes, "f32": lanes}
    if "float64" in share:
        scalar["f64"] = share["float64"] / clock
    # bf16 came to tensor cores with compute capability 8.0, from which on the generated kernels use them.
    return Multiprocessor(clock, scalar, share.get("bfloat16", 0.0) / clock)


def tile_us(dtype: Dtype, tile: Tile, depth: int, of: Multiprocessor) -> float:
    """us of a tile of a product of this depth."""
    rows, columns = tile
    size, result = BYTES[dtype], rows * columns * BYTES[dtype]
    on_tensor_cores = of.tensor and size == 2 and not (rows % SQUARE or columns % SQUARE)
    panel = TENSOR_DEPTH if on_tensor_cores else SCALAR_DEPTH
    loaded = (rows + columns) * panel * size
    load = LATENCY + loaded / L2_BYTES + loaded / SHARED_BYTES + 2 * BARRIER
    if on_tensor_cores:
        steps = (rows // SQUARE) * (columns // SQUARE) * (panel // FRAGMENT)
        multiply = steps * max(4 * FRAGMENT**3 / of.tensor, 4 * FRAGMENT**2 * size / SHARED_BYTES)
    else:
        down, across = (max(1, extent // grid) for extent, grid in zip(tile, GRID, strict=True))
        warps = ceil(min(rows, GRID[0]) * min(columns, GRID[1]) / WARP)
        wavefronts = (down + across) * max(1.0, WARP * size / SHARED_BYTES)
        multiply = warps * panel * max(WARP * down * across / of.lanes[dtype], wavefronts)
    return (ceil(depth / panel) * (load + multiply) + LATENCY + result / L2_BYTES) / of.clock


def best_rate(dtype: Dtype, of: Multiprocessor) -> float:
    """FLOP per us of a multiprocessor on its largest tile, which no product exceeds."""
    depth = 1 << 20
    return 2.0 * LARGEST * LARGEST * depth / tile_us(dtype, (LARGEST, LARGEST), depth, of)


def tile_of(rows: int, columns: int, dtype: Dtype) -> Tile:
    """The largest tile that leaves something to do for all processors, no larger than the result needs."""
    least = 16 // BYTES[dtype]
    down, across = LARGEST, LARGEST
    while max(down, across) > 32 and -(-rows // down) * -(-columns // across) < MIN_TILES:
        down, across = (down // 2, across) if down >= across else (down, across // 2)
    return min(down, _power(rows)), max(least, min(across, _power(columns)))


def _power(extent: int) -> int:
    """The smallest power of two, 8 at least, that holds the extent."""
    return max(8, 1 << max(0, extent - 1).bit_length())
