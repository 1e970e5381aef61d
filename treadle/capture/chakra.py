"""Chakra execution traces (MLCommons): a row of protobuf messages, each behind its length.

Nodes name the nodes they wait for. Those converted from PyTorch also carry the tensors of its execution trace observer;
their GPU kernels repeat the arguments of the operator that launched them, so only operators keep tensors.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any

from treadle.capture.imported import collective_of, imported, target_of
from treadle.capture.observed import Observed, Seen, tensors_of
from treadle.planner.documents.trace import Op, Phase, Trace
from treadle.planner.errors import InputError, MissingBackendError

try:
    from google.protobuf.message import DecodeError

    from treadle.capture import chakra_pb2
except ImportError as error:
    raise MissingBackendError(
        "reading Chakra traces needs protobuf; install it with: pip install 'treadle[traces]'"
    ) from error

pb: Any = chakra_pb2
COLLECTIVES = ("allreduce", "reduce", "allgather", "gather", "scatter", "broadcast", "alltoall", "reducescatter")


def from_bytes(data: bytes, where: str) -> Trace:
    """The trace in a Chakra file. Raises InputError when the bytes are none, or when nodes wait for each other."""
    _, *nodes = _messages(data, where)
    kept = {node.id: node for node in nodes if node.kind != pb.METADATA}
    if len(kept) != sum(node.kind != pb.METADATA for node in nodes):
        raise InputError("found two nodes of one id, expected ids that occur once", where=where)
    waits = _waits(kept, where)
    observed = Observed()
    ops = [_op(kept[key], waits[key], observed) for key in _in_order(waits)]
    costs: Any = "recorded" if any(op.time_ns is not None for op in ops) else "absent"
    return imported("chakra", costs, ops, where, observed.tensors.values())


def begins(data: bytes) -> bool:
    """Whether the bytes begin with a whole message, as a Chakra file does with its metadata."""
    try:
        next(_messages(data, ""), None)
    except InputError:
        return False
    return True


def _messages(data: bytes, where: str) -> Iterator[Any]:
    """The metadata, then the nodes."""
    place = 0
    message: Any = pb.Metadata
    while place < len(data):
        length, start = _varint(data, place, where)
        if start + length > len(data):
            raise InputError(
                f"found {len(data) - start} bytes at offset {start}, expected a Chakra message of {length}",
                where=where,
            )
        try:
            yield message.FromString(data[start : start + length])
        except DecodeError as error:
            raise InputError(
                f"found no protobuf message at offset {start}, expected a Chakra trace", where=where
            ) from error
        message, place = pb.Node, start + length


def _varint(data: bytes, place: int, where: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(data):
            break
        value |= (data[place] & 127) << shift
        place += 1
        if data[place - 1] < 128:
            return value, place
    raise InputError(f"found no message length at offset {place}, expected a Chakra trace", where=where)


def _waits(nodes: dict[int, Any], where: str) -> dict[int, list[int]]:
    """Which nodes each waits for. Where control dependencies close a cycle they are callers, and only data count."""
    for with_control in (True, False):
        named = {
            key: (*node.data_dependencies, *(node.control_dependencies if with_control else ()))
            for key, node in nodes.items()
        }
        waits = {key: [other for other in dict.fromkeys(others) if other in nodes] for key, others in named.items()}
        try:
            TopologicalSorter(waits).prepare()
        except CycleError as error:
            cycle = " -> ".join(str(key) for key in error.args[1][:6])
        else:
            return waits
    raise InputError(f"found nodes that wait for each other ({cycle}), expected an acyclic graph", where=where)


def _in_order(waits: dict[int, list[int]]) -> Iterator[int]:
    """A topological order that keeps the file's order wherever it can."""
    rank = {key: place for place, key in enumerate(waits)}
    sorter = TopologicalSorter(waits)
    sorter.prepare()
    ready: list[tuple[int, int]] = []
    while sorter.is_active():
        for key in sorter.get_ready():
            heappush(ready, (rank[key], key))
        _, key = heappop(ready)
        sorter.done(key)
        yield key


def _op(node: Any, waits: list[int], observed: Observed) -> Op:
    attributes = {a.name: getattr(a, a.WhichOneof("value")) for a in node.attributes if a.WhichOneof("value")}
    phase: Phase = "backward" if attributes.get("fw_tid") or node.name.startswith("autograd::engine::") else "unknown"
    operator = attributes.get("is_cpu_op") is True
    arguments = _tensors(node.inputs) if operator else []
    inputs = observed.read(arguments)
    outputs = observed.write(_tensors(node.outputs) if operator else [], inputs, "unknown")
    target = target_of(str(attributes.get("op_schema", "")), node.name or f"node {node.id}")
    flops, stream = attributes.get("num_ops"), attributes.get("stream")
    return Op(
        id=f"n{node.id}",
        target=target,
        phase=phase,
        inputs=inputs,
        outputs=outputs,
        after=tuple(f"n{key}" for key in waits),
        time_ns=node.duration_us * 1000 or None,
        start_ns=node.start_us * 1000 or None,
        flops=flops if isinstance(flops, int) and flops >= 0 else None,
        stream=str(stream) if stream is not None else None,
        comm=_comm(node, attributes, target, arguments),
    )


def _comm(node: Any, attributes: dict[str, Any], target: str, arguments: list[Seen]) -> dict[str, Any] | None:
    if node.kind not in (pb.SEND, pb.RECEIVE, pb.COLLECTIVE):
        return None
    facts: dict[str, Any] = {}
    if node.kind != pb.COLLECTIVE:
        facts["collective"] = "send" if node.kind == pb.SEND else "recv"
        facts["peer"] = attributes.get("comm_dst" if node.kind == pb.SEND else "comm_src")
        facts["tag"] = attributes.get("comm_tag")
    else:
        kind = attributes.get("comm_type")
        known = COLLECTIVES[kind] if isinstance(kind, int) and 0 <= kind < len(COLLECTIVES) else None
        facts["collective"] = known or collective_of(target)
        facts["group"] = attributes.get("pg_name")
    facts["bytes"] = attributes.get("comm_size", sum(seen.bytes for seen in dict.fromkeys(arguments)) or None)
    return {key: value for key, value in facts.items() if isinstance(value, int | str)}


def _tensors(arguments: Any) -> list[Seen]:
    """Tensors in texts of nested lists; none where the texts are something else."""
    try:
        values, shapes, types = (
            ast.literal_eval(text) for text in (arguments.values, arguments.shapes, arguments.types)
        )
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []
    return list(tensors_of(values, shapes, types))
