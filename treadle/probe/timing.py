"""Settings and results of measuring processes: shared by the parent and its workers, light to import."""

from __future__ import annotations

from dataclasses import dataclass, field

MATMUL = {"cpu": 512, "cuda": 8192}
COPY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
PINNED_BYTES = (4 << 10, 1 << 20, 64 << 20)
DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("float64", "float32", "bfloat16", "float16")}
RATE_SECONDS = 0.3


@dataclass(frozen=True)
class SendTiming:
    """Repeats of one setting: `chunks` chunks of `megabytes` MB (2^20 bytes), in sequence or in bulk."""

    chunks: int
    megabytes: float
    sequential: bool
    times_us: tuple[float, ...]

    @property
    def row(self) -> tuple[float, float]:
        return (self.chunks if self.sequential else 1, self.chunks * self.megabytes)


@dataclass(frozen=True)
class MeasureResults:
    """Rates and timings of one process, with the names under which those of all processes are put together."""

    rates: list[tuple[str, float]] = field(default_factory=list)
    timings: list[tuple[str, SendTiming]] = field(default_factory=list)


@dataclass(frozen=True)
class MeasureSettings:
    """Input of a measuring process. `pairs` maps a link class to the pairs of ranks that stand for it."""

    world: int
    device: str
    threads: int
    store: str
    sizes: tuple[int, ...]
    chunks: int
    repeats: int
    pairs: dict[str, tuple[tuple[int, int], ...]]

    @property
    def steps(self) -> int:
        copies = 2 * len(PINNED_BYTES) if self.device == "cuda" else 0
        rates = len(DTYPES[self.device]) + 2 + copies
        return self.world * rates + sum(map(len, self.pairs.values())) * len(self.sizes) * 2
