"""Recognise a trace of another tool by its content and import it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from treadle.capture.reading import decode_json, read_bytes
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError

EXPECTED = (
    "expected an ExecutionTrace (schema, nodes), a Kineto or Chrome trace (traceEvents), Chakra or a memory snapshot"
)


def import_trace(path: Path | str, step: int | None = None) -> Trace:
    """The trace in a file of PyTorch's ExecutionTrace, Kineto or Chrome JSON, Chakra protobuf, or a pickled memory
    snapshot; also gzip or tar.

    `step` picks a profiler step of a Kineto trace; the last one unless given. Raises InputError for anything else.
    """
    return msgspec.structs.replace(_import(read_bytes(path), str(path), step), name=Path(path).name)


def profiled_steps(path: Path | str) -> tuple[Trace, ...]:
    """The steps in a file of Kineto or Chrome JSON; none in a file of another kind. Raises InputError for a broken
    one."""
    from treadle.capture import kineto

    data = read_bytes(path)
    if data.lstrip()[:1] == b"[":
        data = _as_kineto(data)
    elif data.lstrip()[:1] != b"{" or b'"traceEvents"' not in data:
        return ()
    name = Path(path).name
    return tuple(msgspec.structs.replace(step, name=name) for step in kineto.steps_from_json(data, str(path)))


def _import(data: bytes, where: str, step: int | None) -> Trace:
    if _is_pickle(data):
        from treadle.capture import memory_snapshot

        return memory_snapshot.from_bytes(data, where)
    if data.lstrip()[:1] not in (b"{", b"["):
        from treadle.capture import chakra

        if not chakra.begins(data):
            raise InputError(f"found neither JSON, protobuf nor a pickle, {EXPECTED}", where=where)
        return chakra.from_bytes(data, where)
    from treadle.capture import execution_trace, kineto

    if data.lstrip()[:1] == b"[":
        return kineto.from_json(_as_kineto(data), where, step)
    keys = decode_json(data, dict[str, msgspec.Raw], where)
    if "traceEvents" in keys:
        return kineto.from_json(data, where, step)
    if "nodes" in keys and "schema" in keys:
        return execution_trace.from_json(data, where)
    found: Any = "a treadle document" if "kind" in keys else f"JSON with {', '.join(sorted(keys)[:6]) or 'no keys'}"
    raise InputError(f"found {found}, {EXPECTED}", where=where)


def _as_kineto(events: bytes) -> bytes:
    return b'{"traceEvents":' + events + b"}"


def _is_pickle(data: bytes) -> bool:
    """A pickle starts with its protocol and ends with STOP; the first message of a Chakra file may start alike."""
    return data[0] == 0x80 and 2 <= data[1] <= 5 and data.endswith(b".") if len(data) > 2 else False
