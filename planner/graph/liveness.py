"""Which bytes are alive while each op of a trace runs: one sweep over the ops in their order.

Parameters, buffers, inputs and tangents are there throughout. Any other storage appears with the op that makes it and
goes after the last op that reads it through any view; final gradients, outputs and new buffer values stay to the end.
What optional ops make, which only some plans want, and workspace are not counted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from treadle.planner.documents.trace import Trace
from treadle.planner.graph.gradients import finals

RESIDENT = ("parameter", "buffer", "input", "tangent")


@dataclass(frozen=True)
class Liveness:
    """`during[i]` are the live bytes while op i runs, `resident` of them there throughout."""

    resident: int
    during: tuple[int, ...]
    unknown: int
    """Storages of unknown size, counted as 0 bytes."""
    spans: dict[str, tuple[int, int]]
    """First and last op index at which each storage that comes and goes is live, by its owner's tensor id."""
    sizes: dict[str, int]
    """Bytes of each storage whose size is known, by its owner's tensor id."""

    @property
    def peak(self) -> int:
        """Most live bytes at any op."""
        return max(self.during, default=self.resident)

    @property
    def peak_op(self) -> int | None:
        """The first op index at which the peak is reached; None for a trace without ops."""
        return self.during.index(self.peak) if self.during else None

    def live_at(self, op: int) -> list[str]:
        """Owners of the storages that come and go and are live at op index `op`, largest first."""
        alive = [owner for owner, (first, last) in self.spans.items() if first <= op <= last]
        return sorted(alive, key=lambda owner: (-self.sizes.get(owner, 0), owner))


def owners(trace: Trace) -> dict[str, str]:
    """For each tensor id the id of the tensor that owns its storage: the end of its `alias_of` chain."""
    parent = {tensor.id: tensor.alias_of for tensor in trace.tensors}
    found: dict[str, str] = {}
    for start in parent:
        chain = [start]
        while chain[-1] not in found and (above := parent[chain[-1]]) is not None:
            chain.append(above)
        owner = found.get(chain[-1], chain[-1])
        found.update(dict.fromkeys(chain, owner))
    return found


def sweep(trace: Trace) -> Liveness:
    """Live bytes over the ops of `trace`."""
    owner = owners(trace)
    sizes: dict[str, int] = {}
    unknown = 0
    roles = {tensor.id: tensor.role for tensor in trace.tensors}
    kept = {*trace.outputs, *(value for _, value in trace.updates), *finals(trace)}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, op in enumerate(trace.ops):
        for key in (*op.inputs, *op.mutates, *op.outputs):
            if key is not None and op.intermediate_of is None:
                first.setdefault(owner[key], index)
                last[owner[key]] = index
    for key in kept:
        last[owner[key]] = len(trace.ops) - 1
    resident = 0
    for tensor in trace.tensors:
        if owner[tensor.id] != tensor.id:
            continue
        size = tensor.storage_bytes if tensor.storage_bytes is not None else tensor.bytes
        if size is None:
            unknown += 1
            continue
        sizes[tensor.id] = size
        if tensor.role in RESIDENT:
            resident += size
    spans = {key: (first[key], last[key]) for key in first if roles[key] not in RESIDENT}
    change: defaultdict[int, int] = defaultdict(int)
    for key, (begin, end) in spans.items():
        change[begin] += sizes.get(key, 0)
        change[end + 1] -= sizes.get(key, 0)
    during: list[int] = []
    live = resident
    for index in range(len(trace.ops)):
        live += change[index]
        during.append(live)
    return Liveness(resident, tuple(during), unknown, spans, sizes)
