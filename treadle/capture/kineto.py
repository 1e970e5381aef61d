"""Kineto (PyTorch profiler) and Chrome traces: what ran when on which stream, without tensor identities.

Where the trace saw an accelerator, an op is one kernel, copy or fill on it, and its phase is that of the operator that
launched it. Otherwise an op is an outermost CPU operator, or a message that a thread of Gloo sends. Ops of one stream
(or thread) ran one after the other, which is the only order the file states.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

import msgspec

from treadle.capture.imported import collective_named, collective_of, imported, phase_of
from treadle.capture.reading import decode_json
from treadle.planner.documents.trace import Op, Phase, Trace
from treadle.planner.errors import InputError

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
SENDING = re.compile(r"gloo:|nccl(?:Dev)?Kernel_", re.IGNORECASE)
"""How names of messages begin: threads of Gloo, kernels of NCCL."""
ELEMENT_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "long": 8, "int64": 8,
    "int": 4, "int32": 4, "short": 2, "char": 1, "int8": 1, "byte": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


class ProfilerEvent(msgspec.Struct):
    """One entry of `traceEvents`; `ts` and `dur` are microseconds."""

    ph: str = ""
    name: str = ""
    cat: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: dict[str, Any] | None = None

    @property
    def start(self) -> float:
        return self.ts if self.ts is not None else 0.0

    @property
    def end(self) -> float:
        return self.start + (self.dur or 0.0)

    def arg(self, key: str) -> Any:
        return (self.args or {}).get(key)


class ChromeTrace(msgspec.Struct):
    traceEvents: list[ProfilerEvent]


def from_json(data: bytes, where: str, step: int | None = None) -> Trace:
    """The trace of one profiler step, the last unless `step` names another; of everything where there are no steps.

    Raises InputError for malformed text, an unknown step, or a trace without any operator.
    """
    events = _complete(data, where)
    calls, steps = _Calls(events), _steps(events)
    if step is not None and step not in steps:
        known = ", ".join(str(number) for number in sorted(steps)) or "none"
        raise InputError(f"found profiler steps {known}, expected step {step}", where=where)
    number = max(steps, default=None) if step is None else step
    return _trace(events, calls, None if number is None else steps[number], where)


def steps_from_json(data: bytes, where: str) -> tuple[Trace, ...]:
    """A trace of each profiler step, of everything where there are no steps. Raises InputError as `from_json`."""
    events = _complete(data, where)
    calls, steps = _Calls(events), _steps(events)
    frames: list[ProfilerEvent | None] = [steps[number] for number in sorted(steps)]
    return tuple(_trace(events, calls, frame, where) for frame in frames or [None])


def _complete(data: bytes, where: str) -> list[ProfilerEvent]:
    """The events with a length. Raises InputError for one whose length is no number."""
    events = [
        event for event in decode_json(data, ChromeTrace, where).traceEvents if event.ph == "X" and event.ts is not None
    ]
    for event in events:
        if not math.isfinite(event.start) or (event.dur or 0.0) < 0 or not math.isfinite(event.end):
            raise InputError(
                f"event {event.name!r} has no length, expected finite times", where=where, path="$.traceEvents"
            )
    return events


def _trace(events: list[ProfilerEvent], calls: _Calls, frame: ProfilerEvent | None, where: str) -> Trace:
    """What was launched in a step. Raises InputError for nothing."""
    on_device = [event for event in events if event.cat in ON_DEVICE]
    sending = [] if on_device else calls.sending()
    launched = (
        [(event, calls.launching(event)) for event in on_device]
        if on_device
        else [*((event, event) for event in calls.outermost()), *((event, None) for event in sending)]
    )
    if frame is not None:
        launched = [(event, call) for event, call in launched if frame.start <= (call or event).start < frame.end]
    if not launched:
        raise InputError("found no operator or kernel in it, expected at least one", where=where, path="$.traceEvents")
    launched.sort(key=lambda pair: (pair[0].start, str(pair[0].tid), pair[0].name))
    origin = launched[0][0].start
    last: dict[str, str] = {}
    ops = []
    for index, (event, call) in enumerate(launched):
        stream = _stream(event)
        comm = None if sending and call is not None else _comm(event)
        ops.append(_op(index, event, calls.phase(call), origin, stream, last.get(stream), comm))
        last[stream] = ops[-1].id
    return imported("kineto", "recorded", ops, where)


def _steps(events: list[ProfilerEvent]) -> dict[int, ProfilerEvent]:
    """The profiler steps by number."""
    return {
        int(event.name.removeprefix("ProfilerStep#")): event
        for event in events
        if event.cat == "user_annotation" and event.name.removeprefix("ProfilerStep#").isdecimal()
    }


class _Calls:
    """Nested calls on the CPU: who launched what, inside what."""

    def __init__(self, events: list[ProfilerEvent]) -> None:
        self.by_external: dict[Any, ProfilerEvent] = {}
        by_thread: defaultdict[tuple[str, str], list[ProfilerEvent]] = defaultdict(list)
        for event in events:
            if event.cat in ("cpu_op", "user_annotation"):
                by_thread[str(event.pid), str(event.tid)].append(event)
                if event.cat == "cpu_op" and isinstance(event.arg("External id"), int):
                    self.by_external[event.arg("External id")] = event
        self.callers: dict[int, ProfilerEvent | None] = {}
        self.operators: list[ProfilerEvent] = []
        for thread in sorted(by_thread):
            open_calls: list[ProfilerEvent] = []
            for event in sorted(by_thread[thread], key=lambda e: (e.start, -e.end)):
                while open_calls and open_calls[-1].end <= event.start:
                    open_calls.pop()
                self.callers[id(event)] = open_calls[-1] if open_calls else None
                open_calls.append(event)
                self.operators.append(event)

    def launching(self, event: ProfilerEvent) -> ProfilerEvent | None:
        """The CPU operator that launched a device activity."""
        return self.by_external.get(event.arg("External id"))

    def outermost(self) -> list[ProfilerEvent]:
        """Operators of a namespace (`aten::mm`) that no other one calls."""
        return [
            event for event in self.operators if _is_operator(event) and not any(map(_is_operator, self.above(event)))
        ]

    def sending(self) -> list[ProfilerEvent]:
        """Messages that threads of a communication library send."""
        return [event for event in self.operators if event.cat == "user_annotation" and SENDING.match(event.name)]

    def above(self, event: ProfilerEvent) -> list[ProfilerEvent]:
        """The callers of `event`, innermost first."""
        found = []
        caller = self.callers.get(id(event))
        while caller is not None:
            found.append(caller)
            caller = self.callers.get(id(caller))
        return found

    def phase(self, call: ProfilerEvent | None) -> Phase:
        if call is None:
            return "unknown"
        return phase_of(event.name for event in (call, *self.above(call)))


def _is_operator(event: ProfilerEvent) -> bool:
    return (
        event.cat == "cpu_op" and "::" in event.name and not event.name.startswith(("autograd::", "torch::autograd::"))
    )


def _op(
    index: int,
    event: ProfilerEvent,
    phase: Phase,
    origin: float,
    stream: str,
    before: str | None,
    comm: dict[str, Any] | None,
) -> Op:
    moved = event.arg("bytes")
    return Op(
        id=f"e{index}",
        target=event.name or "unnamed",
        phase=phase,
        after=(before,) if before is not None else (),
        time_ns=_ns(event.dur) if event.dur is not None else None,
        start_ns=_ns(event.start - origin),
        stream=stream,
        bytes_moved=moved if isinstance(moved, int) and moved >= 0 and event.cat != "cpu_op" else None,
        comm=comm,
    )


def _stream(event: ProfilerEvent) -> str:
    stream, device = event.arg("stream"), event.arg("device")
    return f"device {device} stream {stream}" if stream is not None else f"thread {event.tid}"


def _comm(event: ProfilerEvent) -> dict[str, Any] | None:
    name, elements = event.arg("Collective name"), event.arg("In msg nelems")
    if not isinstance(name, str):
        sent = SENDING.match(event.name)
        collective = (
            collective_named(event.name[sent.end() :].lower())
            if sent is not None
            else collective_of(event.name.replace("::", "."))
        )
        return {"collective": collective} if collective else None
    size = ELEMENT_BYTES.get(str(event.arg("dtype")).lower())
    facts = {
        "collective": collective_named(name) or name,
        "bytes": elements * size if isinstance(elements, int) and size else None,
        "dtype": event.arg("dtype"),
        "group": event.arg("Process Group Name"),
        "group_size": event.arg("Group size"),
        "ranks": event.arg("Process Group Ranks"),
    }
    return {key: value for key, value in facts.items() if isinstance(value, int | str)}


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)
