"""Measure what compressing gradients costs on this machine: compressors, copies, and where ranks were started
together the collectives of torch.distributed between them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.host.cores import cores
from treadle.planner.documents.compression_costs import (
    VERSION,
    CompressionCosts,
    CompressorCost,
    Curve,
    DecodeCurve,
    Point,
    RoutineCost,
    interpolated,
)
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError, MissingBackendError
from treadle.planner.machine.compressors import compressor
from treadle.planner.passes.compression.payload import sent_bytes
from treadle.probe.cost_fit import DOUBTFUL
from treadle.probe.curve_fit import CurveFit, fit_curve
from treadle.probe.local import cpu_model
from treadle.runtime.joined import joined_rank, started_rank
from treadle.runtime.launch import launch, send

if TYPE_CHECKING:
    from treadle.probe.compression_worker import Series, Times
    from treadle.probe.measured_codecs import CodecMaker
    from treadle.probe.routine_worker import RoutineSeries

SIZES = (1 << 10, 1 << 12, *(1 << step for step in range(14, 27)))
"""Bytes of gradients: 1 KiB to 64 MiB."""
LARGEST = 1 << 30
PACKED = 8
"""Gradients that are copied into one buffer."""
STALL_SECONDS = 300.0
NEGLIGIBLE_NS = 5000
"""Computing that collectives delay by less is not delayed."""
OnStep = Callable[[str], None]


@dataclass(frozen=True)
class MeasuredCompression:
    """The costs, and the fit behind each curve by what it is of."""

    costs: CompressionCosts
    fits: dict[str, CurveFit]

    @property
    def doubt(self) -> str:
        """What makes these costs doubtful, empty where nothing does."""
        name, worst = max(self.fits.items(), key=lambda it: it[1].error)
        return "" if worst.error <= DOUBTFUL else f"{name}: the fit is off by {worst.error:.0%}, as on a busy machine"


@dataclass(frozen=True)
class _Settings:
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    maker: CodecMaker | None
    node_ranks: int | None = None


@dataclass(frozen=True)
class _Times:
    """What a process found; all of them found the same."""

    compressors: Times
    routines: dict[RoutineSeries, dict[int, float]]
    issue: dict[int, float]
    device: str
    threads: int


def measure_compression(
    names: Sequence[str],
    sizes: Sequence[int] | None,
    together: int | None,
    command: str,
    *,
    node_ranks: int | None = None,
    on_step: OnStep = lambda text: None,
    maker: CodecMaker | None = None,
) -> MeasuredCompression | None:
    """Measure compressors on gradients of `sizes` bytes: in `together` processes at once, one by default. With
    `node_ranks` those processes are the ranks of CPU training, of one thread each and as many to a node: collectives
    between them are measured too.

    Where the environment says that this process is one rank of several (torchrun, `treadle lab run`), all of them
    measure at once, collectives too; the first one has the result, the others None. `maker` makes other codecs than
    those of treadle.

    Raises MissingBackendError without torch, InputError for names, sizes and numbers that cannot be, CheckFailed for a
    payload of another size than plans count with, and what `launch` raises.
    """
    chosen = tuple(dict.fromkeys(compressor(name, "--compression").name for name in names))
    for size in sizes or ():
        if size < 4 or size > LARGEST or size % 4:
            raise InputError(f"found {size} bytes, expected float32 gradients of 4 bytes to 1 GiB", where="--sizes")
    joined = joined_rank()
    if joined is not None and together is not None:
        raise InputError(f"found {together}, expected none: {joined[1]} ranks were started", where="--together")
    if importlib.util.find_spec("torch") is None:
        raise MissingBackendError("measuring needs torch; install it with: pip install 'treadle[torch]'")
    elements = tuple(sorted({size // 4 for size in sizes or SIZES}))
    settings = _Settings(chosen, elements, maker, node_ranks)
    if joined is not None:
        with started_rank() as here:
            found = _measured(settings, here.rank, here.world, on_step if here.rank == 0 else lambda text: None)
        if joined[0] > 0:
            return None
    elif together in (None, 1):
        found = _measured(settings, 0, 1, on_step)
    else:
        assert together is not None
        found = launch(together, _work, (settings,), STALL_SECONDS, on_message=on_step)[0]
    world = joined[1] if joined else together or 1
    return _document(found, world, command)


def _work(rank: int, world: int, settings: _Settings) -> _Times:
    return _measured(settings, rank, world, send if rank == 0 else lambda text: None)


def _measured(settings: _Settings, rank: int, world: int, on_step: OnStep) -> _Times:
    # Only what measures imports torch.
    import torch

    from treadle.probe.call_timer import CallTimer
    from treadle.probe.compression_worker import measured_compressors
    from treadle.probe.measured_codecs import measured_codec
    from treadle.probe.routine_worker import RoutineSeries, issue_times, measured_routines
    from treadle.runtime.collective.grouped import nccl_group
    from treadle.runtime.scope_groups import scope_groups

    device = torch.device("cpu")
    is_joined, node_ranks = joined_rank() is not None, settings.node_ranks
    if node_ranks is not None:
        torch.set_num_threads(1)
    elif torch.cuda.is_available():
        device = nccl_group()[1] if is_joined else torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    timer = CallTimer(device, world > 1)
    routines, issue = {}, {}
    if is_joined or node_ranks is not None:
        options = {"backend": "nccl"} if device.type == "cuda" else {}
        groups = scope_groups(node_ranks or ranks_of_host(world), **options)
        largest = None if node_ranks is None else 4 * max(settings.sizes)
        routines = measured_routines(groups, timer, on_step, largest)
        sizes = routines[RoutineSeries("allreduce", "flat", world)]
        issue = issue_times(groups, timer, sizes, on_step)
    times = measured_compressors(
        settings.names, settings.sizes, PACKED, timer, settings.maker or measured_codec, on_step
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    return _Times(times, routines, issue, name, torch.get_num_threads())


def ranks_of_host(world: int) -> int:
    """Ranks of each host: LOCAL_WORLD_SIZE, else all. Raises InputError for a number that does not fill hosts."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "").strip() or str(world)
    if not text.isascii() or not text.isdecimal() or int(text) == 0 or world % int(text):
        raise InputError(f"found {text!r}, expected a number of ranks that divides {world}", where="LOCAL_WORLD_SIZE")
    return int(text)


def _document(found: _Times, world: int, command: str) -> MeasuredCompression:
    series = {each: fit_curve(by_size) for each, by_size in found.compressors.items()}
    fits = {series_text(each): fit for each, fit in series.items()}
    pack = next(fit for each, fit in series.items() if each.work == "pack")
    compressors = [_cost(each, series) for each in series if each.work == "encode"]
    is_gpu = found.device != cpu_model()
    issue = None
    if max(found.issue.values(), default=0.0) >= NEGLIGIBLE_NS:
        fit = fit_curve({size: max(1.0, ns) for size, ns in found.issue.items()})
        fits["computing delayed by an allreduce"], issue = fit, Curve(points=fit.points)
    if not is_gpu and issue is None:
        compressors += [
            CompressorCost(name=each.name, place="host", encode=each.encode, decode=each.decode) for each in compressors
        ]
    routines = []
    for each, by_size in found.routines.items():
        fits[f"{each.routine}, {each.ranks} ranks, {each.scope}"] = fit = fit_curve(by_size)
        curve = _on_link(each, fit, issue)
        routines.append(RoutineCost(routine=each.routine, scope=each.scope, ranks=each.ranks, curve=curve))
    costs = CompressionCosts(
        version=VERSION,
        name=found.device,
        compressors=tuple(compressors),
        routines=tuple(routines),
        issue=issue,
        pack=Curve(points=pack.points),
        sources=_sources(found, world, command, len(compressors) // 2 if is_gpu else 0, issue is None),
    )
    return MeasuredCompression(costs, fits)


def _on_link(series: RoutineSeries, fit: CurveFit, issue: Curve | None) -> Curve:
    """What a collective takes in addition to what it takes of the device."""
    if issue is None:
        return Curve(points=fit.points)
    points: list[Point] = []
    for size in sorted({*(x for x, _ in fit.points), *(row.size for row in fit.rows)}):
        ns = interpolated(fit.points, size) - issue.at(sent_bytes(series.routine, series.ranks, size))
        points.append((size, max(0, ns, points[-1][1] if points else 0)))
    return Curve(points=tuple(points))


def _cost(encode: Series, series: dict[Series, CurveFit]) -> CompressorCost:
    decode = [(each, fit) for each, fit in series.items() if each[:3] == ("decode", encode.name, encode.place)]
    return CompressorCost(
        name=encode.name,
        place=encode.place,
        encode=Curve(points=series[encode].points),
        decode=tuple(DecodeCurve(pieces=each.pieces, points=fit.points) for each, fit in decode),
    )


def series_text(series: Series) -> str:
    """How tables call it."""
    if series.work == "pack":
        return "copy into one buffer"
    pieces = f" {many(series.pieces, 'payload')} of" if series.work == "decode" else ""
    return f"{series.work}{pieces} {series.name} on the {series.place}"


def _sources(found: _Times, world: int, command: str, gpu: int, spare: bool) -> dict[str, str]:
    """By path prefix; the first `gpu` compressors ran on a GPU."""
    at_once = f"{world} processes at once, medians" if world > 1 else "one process, the least"
    how = f"measured: `{command}`, {at_once} of repeats, fitted with a plateau"
    cpu = f"{cpu_model()}, {many(cores(), 'core')}, {many(found.threads, 'thread')} a process"
    if gpu:
        sources = {f"compressors[{place}]": f"{how}; {found.device}" for place in range(gpu)}
        copies = "with copies to and from pinned memory"
        sources |= {f"compressors[{gpu + place}]": f"{how}; {cpu}, {copies}" for place in range(gpu)}
    else:
        sources = {"compressors": f"{how}; {cpu}, " + ("device and host" if spare else "without a core to spare")}
    sources["pack"] = f"{how}; {found.device if gpu else cpu}, of {PACKED} gradients"
    if found.routines:
        sources["routines"] = f"{how}; {'NCCL' if gpu else 'gloo'}"
        if not gpu:
            sources["issue"] = f"what matrix products lose to an allreduce of another thread; {cpu} for all ranks"
    return sources
