"""PyTorch's memory snapshots: what `torch.cuda.memory._dump_snapshot` writes.

A snapshot has no operators. It lists what the allocator did, with the call stack of each allocation. The trace has an
op for each block that is allocated and one for each that becomes free again, in their order. An op is named after the
innermost line of Python outside of PyTorch, such as `train.py:42:forward`. Bytes are those that were asked for, without
rounding and fragmentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from treadle.capture.imported import imported
from treadle.capture.plain_pickle import unpickle
from treadle.planner.documents.explain import found, misfit
from treadle.planner.documents.scalars import Count
from treadle.planner.documents.trace import Op, Phase, Tensor, Trace
from treadle.planner.errors import InputError

MAX_EVENTS = 2_000_000
BEFORE = "allocated before recording"
OUT_OF_MEMORY = "out of memory"
FREE, END = "free", "end of recording"


class _Frame(Struct, frozen=True):
    filename: str = ""
    line: int = 0
    name: str = ""


class _Entry(Struct, frozen=True):
    """One action of the allocator. Times are in us."""

    action: str
    addr: Count = 0
    size: Count = 0
    stream: int = 0
    time_us: Count | None = None
    frames: Any = None


class _Block(Struct, frozen=True):
    size: Count
    state: str
    address: Count | None = None
    requested_size: Count | None = None
    frames: Any = None


class _Segment(Struct, frozen=True):
    address: Count
    blocks: tuple[_Block, ...]
    device: Count = 0


class _Snapshot(Struct, frozen=True):
    device_traces: tuple[tuple[_Entry, ...], ...]
    segments: tuple[_Segment, ...] = ()


def from_bytes(data: bytes, where: str) -> Trace:
    """The trace in a pickled snapshot, of the device with the most events. Raises InputError for anything else."""
    snapshot = _read(unpickle(data, where), where)
    device, events = max(enumerate(snapshot.device_traces), key=lambda pair: (len(pair[1]), -pair[0]), default=(0, ()))
    if not events:
        advice = "record them with torch.cuda.memory._record_memory_history() before the step"
        raise InputError(f"found a memory snapshot without events; {advice}", where=where)
    history = _History(min((event.time_us for event in events if event.time_us is not None), default=0))
    last = [block for segment in snapshot.segments if segment.device == device for block in _active(segment)]
    history.begin(events, last)
    for event in events:
        history.add(event)
    history.end()
    trace = imported("memory-snapshot", "absent", history.ops, where, history.tensors)
    return replace(trace, costs=replace(trace.costs, device=f"cuda:{device}"))


def _read(raw: Any, where: str) -> _Snapshot:
    """The raw value as a snapshot. Lists may occur in it many times over, so lengths are added up first."""
    if not isinstance(raw, dict) or "device_traces" not in raw:
        kind = f"a pickle of {found(raw)}"
        if isinstance(raw, list) and raw and isinstance(raw[0], dict) and "blocks" in raw[0]:
            kind = "the segments of a memory snapshot only"
        expected = "a memory snapshot with device_traces, as torch.cuda.memory._dump_snapshot writes it"
        raise InputError(f"found {kind}, expected {expected}", where=where)
    traces, segments = raw["device_traces"], raw.get("segments", [])
    parts = [*(traces if isinstance(traces, list) else ()), *(segments if isinstance(segments, list) else ())]
    lists = [part.get("blocks") if isinstance(part, dict) else part for part in parts]
    count = sum(len(part) for part in lists if isinstance(part, list))
    if count > MAX_EVENTS:
        advice = "record fewer with torch.cuda.memory._record_memory_history(max_entries=100000)"
        raise InputError(f"found {count:,} events, expected up to {MAX_EVENTS:,}; {advice}", where=where)
    try:
        return convert(raw, _Snapshot)
    except ValidationError as error:
        path, seen, expected = misfit(raw, _Snapshot) or ("$", str(error), "a memory snapshot")
        raise InputError(f"found {seen}, expected {expected}", where=where, path=path) from error


def _active(segment: _Segment) -> Iterable[tuple[int, _Block]]:
    """Address and block of the tensors of a segment."""
    address = segment.address
    for block in segment.blocks:
        if block.state != "inactive":
            yield address if block.address is None else block.address, block
        address += block.size


class _Lines:
    """What allocations are named after. Call stacks are shared by many events, so each is read once."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[str, Phase]] = {}

    def of(self, frames: Any) -> tuple[str, Phase]:
        """The innermost line outside of PyTorch, and the phase of the step; no line without a call stack."""
        if id(frames) not in self.known:
            calls = [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list | tuple) else []
            self.known[id(frames)] = _line(calls), _phase(calls)
        return self.known[id(frames)]


def _line(calls: Sequence[dict[Any, Any]]) -> str:
    python = [call for call in calls if str(call.get("filename")).endswith(".py")]
    own = [call for call in python if not _of_torch(str(call["filename"]))]
    for call in (*own, *python, *calls):
        file = str(call.get("filename")).replace("\\", "/").rpartition("/")[2]
        text = f"{file}:{call.get('line')}:{call.get('name')}"
        return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]
    return ""


def _of_torch(file: str) -> bool:
    return "-packages/torch/" in file.replace("\\", "/")


def _phase(calls: Sequence[dict[Any, Any]]) -> Phase:
    files = [str(call.get("filename")).replace("\\", "/") for call in calls]
    if any("-packages/torch/optim/" in file for file in files):
        return "optimizer"
    names = [str(call.get("name")) for call in calls]
    if any("_engine_run_backward" in name or "autograd::Engine" in name for name in names):
        return "backward"
    return "forward" if calls else "unknown"


@dataclass
class _History:
    """Ops and tensors of the events added so far. `live` has the tensor of each address in use."""

    origin_us: int
    lines: _Lines = field(default_factory=_Lines)
    ops: list[Op] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    live: dict[int, str] = field(default_factory=dict)

    def begin(self, events: Sequence[_Entry], last: Iterable[tuple[int, _Block]]) -> None:
        """What was allocated before the first event: blocks that are freed without having been allocated, and those
        that are there in the end without that."""
        made: set[int] = set()
        for event in events:
            if event.action == "alloc":
                made.add(event.addr)
            elif event.action == "free_completed" and event.addr not in made and event.addr not in self.live:
                self._allocate(event.addr, event.size, None, None)
        for address, block in last:
            if address not in made and address not in self.live:
                size = block.size if block.requested_size is None else block.requested_size
                self._allocate(address, size, block.frames, None)

    def add(self, event: _Entry) -> None:
        if event.action == "alloc":
            self._allocate(event.addr, event.size, event.frames, event)
        elif event.action == "free_completed" and event.addr in self.live:
            self._op(FREE, event.frames, event, inputs=(self.live.pop(event.addr),))
        elif event.action == "oom":
            line, _ = self.lines.of(event.frames)
            self._op(f"{OUT_OF_MEMORY} {line}".strip(), event.frames, event, size=event.size)

    def end(self) -> None:
        self._op(END, None, None, inputs=tuple(self.live.values()))

    def _allocate(self, address: int, size: int, frames: Any, event: _Entry | None) -> None:
        if address in self.live:  # its end is not in the record
            self._op(FREE, None, event, inputs=(self.live.pop(address),))
        line, _ = self.lines.of(frames)
        self.live[address] = self._op(line or (BEFORE if event is None else "unknown line"), frames, event, size=size)

    def _op(
        self, target: str, frames: Any, event: _Entry | None, *, inputs: tuple[str, ...] = (), size: int | None = None
    ) -> str:
        """Adds an op, and the tensor of `size` bytes that it makes, whose id is returned."""
        made = f"t{len(self.tensors)}"
        if size is not None:
            self.tensors.append(Tensor(id=made, role="unknown", bytes=size))
        at = None if event is None or event.time_us is None else (event.time_us - self.origin_us) * 1000
        op = Op(
            id=f"e{len(self.ops)}",
            target=target,
            phase=self.lines.of(frames)[1] if event is not None else "unknown",
            inputs=inputs,
            outputs=(made,) if size is not None else (),
            start_ns=at,
            stream=None if event is None else f"stream {event.stream}",
        )
        self.ops.append(op)
        return made
