"""From a trace and a hardware profile to the swap problem.

Bytes belong to storages: a view has none and is no operator; an op that reads it reads the storage's owner. An op that
writes in place overwrites a storage it reads. So that every order that the problem allows gives the same bits, a reader
waits for the last write before it, a write for the reads and the write before it, and a random op for the random op
before it. Optional ops (`intermediate_of`) are left out, and what no op uses.

Roles: parameters stay parameters, buffers (an optimizer's moments among them) become states, inputs and tangents
inputs. The results of the step are kept: outputs, final gradients that no optimizer op of the trace reads, and the new
values of buffers (`Trace.updates`). Such a value is a tensor of its own, made by its op like any other; when the
iteration ends it is on the device or on the host. Writing it back is no operator: within the iteration
the buffer keeps its old value on the device and on the host; between iterations the runtime copies the new value over
the buffer's host copy and, where the buffer is a final resident, over its place on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from treadle.planner.documents.hardware import CopyEngine, Hardware
from treadle.planner.documents.trace import Op, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import finals
from treadle.planner.graph.index import Graph, require_operators
from treadle.planner.passes.swap.problem import PERSISTENT, VERSION, Role, SwapMachine, SwapOp, SwapProblem, SwapTensor

ROLES: dict[str, Role] = {"parameter": "parameter", "buffer": "state", "input": "input", "tangent": "input"}
ALIGNED = 16
"""Tensor sizes are multiples of this, so that one of any element type can follow another. Matrix products on some CPUs
round otherwise where an operand is less aligned."""
GRANULARITY = 512
"""Object sizes of a pool are multiples of this, as with device allocators; kernels are chosen by such alignment."""
FINEST = 1000
"""Largest denominator of the share of its speed that a copy keeps while the other direction is busy."""


def problem_from_trace(trace: Trace, machine: SwapMachine, reserve_bytes: int = 0) -> SwapProblem:
    """The swap problem of one iteration, training or inference. Ops and storages keep the trace's ids.

    Raises InputError for a trace that lacks times or sizes, names no tensors, writes into an input, or reads what
    nothing has made yet.
    """
    require_operators(trace)
    graph = Graph(trace)
    planned = [
        (place, op) for place, op in enumerate(trace.ops) if op.intermediate_of is None and not graph.is_view(op)
    ]
    if not any(op.inputs or op.outputs for _, op in planned):
        text = (
            "found no op that reads or makes a tensor, expected a trace with tensors, such as one captured from PyTorch"
        )
        raise InputError(text, where=trace.name, path="$.ops")
    for place, op in planned:
        if op.time_ns is None:
            text = f"op {op.id!r} has no time; "
            if trace.costs.model == "absent":
                text += "name a profile with --hardware, or capture with `--hardware` or `--measure`"
            else:  # with a profile these stay as they are
                text += f"expected one for every op, where others have {trace.costs.model} times"
            raise InputError(text, where=trace.name, path=f"$.ops[{place}].time_ns")
    for place, op in planned:
        for key in op.mutates:
            if _role(graph, graph.owner[key]) == "input":
                text = f"op {op.id!r} writes into the input {key!r}, expected a buffer for what lives on"
                raise InputError(text, where=trace.name, path=f"$.ops[{place}].mutates")
    storages = dict.fromkeys(key for _, op in planned for key in (*_read(graph, op), *_made(graph, op)))
    number = {key: at for at, key in enumerate(storages)}
    kept = _results(graph)
    waits = _waits(graph)
    problem = SwapProblem(
        version=VERSION,
        machine=machine,
        reserve_bytes=reserve_bytes,
        granularity=GRANULARITY,
        tensors=tuple(_tensor(graph, key, kept) for key in storages),
        ops=tuple(
            SwapOp(
                id=op.id,
                inputs=tuple(number[key] for key in _read(graph, op)),
                outputs=tuple(number[key] for key in _made(graph, op)),
                writes=tuple(dict.fromkeys(number[graph.owner[key]] for key in op.mutates)),
                after=waits[op.id],
                time_ns=op.time_ns or 0,
                scratch_bytes=_scratch_bytes(graph, op),
            )
            for _, op in planned
        ),
    )
    for path, found, expected in problem.problems():
        raise InputError(f"as a swap problem: found {found}, expected {expected}", where=trace.name, path=path)
    return problem


def machine_of(hardware: Hardware, memory_bytes: int | None = None, host_bytes: int | None = None) -> SwapMachine:
    """The first GPU of the profile (otherwise its first device) and the copies between it and its host.

    `memory_bytes` and `host_bytes` replace those of the profile. Raises InputError for a profile without the
    device's memory or without copies in both directions.
    """
    gpus = (index for index, device in enumerate(hardware.devices) if device.kind == "gpu")
    place = next(gpus, 0)
    memory = memory_bytes if memory_bytes is not None else hardware.devices[place].memory_bytes
    if memory is None:
        text = (
            "found nothing, expected the device's bytes; give them with --device-memory or write them into the profile"
        )
        raise InputError(text, where=hardware.name, path=f"$.devices[{place}].memory_bytes")
    inward, outward = _engine(hardware, "host-to-device"), _engine(hardware, "device-to-host")
    return SwapMachine(
        memory_bytes=memory,
        host_bytes=host_bytes if host_bytes is not None else hardware.host.memory_bytes,
        in_bandwidth=max(1, round(inward.bandwidth)),
        out_bandwidth=max(1, round(outward.bandwidth)),
        together=_together(hardware, inward, outward),
        copy_ns=math.ceil(max(inward.alpha_us, outward.alpha_us) * 1000),
    )


def _engine(hardware: Hardware, direction: str) -> CopyEngine:
    for engine in hardware.copy_engines:
        if engine.direction == direction:
            return engine
    text = (
        f"found no engine for {direction} copies, expected one with its bandwidth; measure it with "
        "`treadle profile measure`, or write it into the profile"
    )
    raise InputError(text, where=hardware.name, path="$.copy_engines")


def _together(hardware: Hardware, inward: CopyEngine, outward: CopyEngine) -> tuple[int, int]:
    """The share of its own speed that each direction keeps while both are busy."""
    if hardware.copy_together is None:
        return 1, 1
    both = Fraction(inward.bandwidth) + Fraction(outward.bandwidth)
    share = min(Fraction(1), (Fraction(hardware.copy_together) / both).limit_denominator(FINEST))
    if share < Fraction(1, 2):
        text = (
            f"found {hardware.copy_together:g}, expected at least {float(both / 2):g}, half of the sum of both "
            "directions"
        )
        raise InputError(text, where=hardware.name, path="$.copy_together")
    return share.numerator, share.denominator


def _read(graph: Graph, op: Op) -> list[str]:
    """Storages that an op reads or writes into."""
    return list(dict.fromkeys(graph.owner[key] for key in (*op.inputs, *op.mutates)))


def _made(graph: Graph, op: Op) -> list[str]:
    """Storages that an op makes."""
    return [key for key in op.outputs if key is not None and graph.owner[key] == key]


def _scratch_bytes(graph: Graph, op: Op) -> int:
    """Bytes that the op allocates besides the places of its results: workspace, and the results themselves where it
    cannot write them into given memory."""
    made = sum(_storage_bytes(graph, key) for key in _made(graph, op)) if op.returns_new else 0
    return (op.workspace_bytes or 0) + made


def _results(graph: Graph) -> set[str]:
    """Storages that are needed after the iteration."""
    trace = graph.trace
    taken = {graph.owner[key] for op in trace.ops if op.phase == "optimizer" for key in op.inputs}
    gradients = {graph.owner[tensor] for tensor in finals(trace)}
    values = (*trace.outputs, *(value for _, value in trace.updates))
    return {graph.owner[key] for key in values} | (gradients - taken)


def _storage_bytes(graph: Graph, key: str) -> int:
    """Raises InputError for a tensor whose size the trace does not state."""
    tensor = graph.tensors[key]
    size = tensor.bytes if tensor.storage_bytes is None else tensor.storage_bytes
    if size is None:
        text = (
            f"tensor {key!r} has no size, expected the bytes of every tensor, as a trace captured from PyTorch has them"
        )
        place = graph.trace.tensors.index(tensor)
        raise InputError(text, where=graph.trace.name, path=f"$.tensors[{place}].bytes")
    return size


def _tensor(graph: Graph, key: str, kept: set[str]) -> SwapTensor:
    role = _role(graph, key)
    size = _storage_bytes(graph, key)
    # results of the step are kept; its inputs are still on the host
    return SwapTensor(
        id=key,
        bytes=-(-size // ALIGNED) * ALIGNED,
        role=role,
        kept=role in PERSISTENT or (key in kept and role != "input"),
    )


def _role(graph: Graph, key: str) -> Role:
    """A tensor that exists before the iteration and has no role, as in imported traces, may be needed in the next."""
    maker = graph.producer.get(key)
    if maker is None:
        return ROLES.get(graph.tensors[key].role, "state")
    return "gradient" if maker.phase == "backward" else "activation"


def _waits(graph: Graph) -> dict[str, tuple[int, ...]]:
    """For each planned op the numbers of planned ops it waits for besides the makers of what it reads."""
    number: dict[str, int] = {}
    stands: dict[str, tuple[int, ...]] = {}  # for any op: the planned ops that a wait for it is a wait for
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    drawn: tuple[int, ...] = ()
    waits: dict[str, tuple[int, ...]] = {}
    for op in graph.trace.ops:
        given = [before for name in op.after for before in stands.get(name, ())]
        if op.intermediate_of is not None or graph.is_view(op):
            makers = (graph.producer[key].id for key in op.inputs if key in graph.producer)
            stands[op.id] = _ascending([*given, *(before for name in makers for before in stands.get(name, ()))])
            continue
        here = number[op.id] = len(number)
        stands[op.id] = (here,)
        before = [*given, *(drawn if op.random else ())]
        written = dict.fromkeys(graph.owner[key] for key in op.mutates)
        for key in _read(graph, op):
            if key in writer:
                before.append(writer[key])
            if key in written:
                before += readers.get(key, ())
        for key in _read(graph, op):
            if key in written:
                writer[key], readers[key] = here, []
            else:
                readers.setdefault(key, []).append(here)
        drawn = (here,) if op.random else drawn
        waits[op.id] = _ascending(before)
    return waits


def _ascending(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(numbers)))
