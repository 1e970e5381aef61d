"""One training step as its ops make and read storages, which is where bytes belong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from treadle.planner.documents.trace import Call, Implementation, Op, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import finals
from treadle.planner.graph.index import require_operators
from treadle.planner.graph.liveness import owners


@dataclass(frozen=True)
class TrainingStep:
    """The ops that make storages, and whose storage each tensor lies in."""

    name: str
    tensors: dict[str, Tensor]
    owner: dict[str, str]
    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    parameter_gradients: dict[str, str]
    """From the storage of a gradient to that of its parameter."""
    gradients: frozenset[str]
    tangents: frozenset[str]

    @staticmethod
    def of(trace: Trace) -> TrainingStep:
        require_operators(trace)
        tensors = {tensor.id: tensor for tensor in trace.tensors}
        owner = owners(trace)
        made = {t for op in trace.ops for t in op.outputs if t is not None}
        places = {op.id: f"$.ops[{index}]" for index, op in enumerate(trace.ops)}
        phases: dict[str, list[Op]] = {"forward": [], "backward": []}
        for op in trace.ops:
            if op.phase not in phases:
                expected = "forward or backward, which a memory plan covers; capture it without --optimizer"
                raise InputError(f"op {op.id!r} is of phase {op.phase}, expected {expected}", path=places[op.id])
            if op.mutates:
                raise InputError(
                    f"op {op.id!r} ({op.target}) writes into {op.mutates[0]!r} in place, expected a functional "
                    "trace as `treadle trace capture` makes it",
                    where=trace.name,
                    path=places[op.id],
                )
            if all(t is None or owner[t] != t for t in op.outputs):
                continue
            for call in op.variants:
                if call.time_ns is None:
                    called = f"op {op.id!r}" if call is op else f"implementation {name_of(call)!r} of op {op.id!r}"
                    raise InputError(
                        f"{called} has no time; capture the trace with costs: "
                        "`treadle trace capture --hardware NAME` or `--measure`",
                        where=trace.name,
                        path=f"{places[op.id]}.time_ns",
                    )
            phases[op.phase].append(op)
        late = {owner[t] for op in phases["backward"] for t in op.outputs if t is not None}
        for op in phases["forward"]:
            if any(owner[t] in late for t in op.inputs):
                raise InputError(f"forward op {op.id!r} reads what a backward op makes", path=places[op.id])
        leaves = {owner[gradient]: leaf for gradient, leaf in finals(trace).items()}
        return TrainingStep(
            name=trace.name,
            tensors=tensors,
            owner=owner,
            forward=tuple(phases["forward"]),
            backward=tuple(phases["backward"]),
            parameter_gradients={
                t: owner[of] for t, of in leaves.items() if tensors[of].role == "parameter" and t in made
            },
            gradients=frozenset(leaves) & made,
            tangents=frozenset(owner[t] for t in trace.tangents),
        )

    def size(self, tensor: str) -> int:
        """Bytes of the storage that `tensor` owns."""
        found = self.tensors[tensor]
        count = found.bytes if found.storage_bytes is None else found.storage_bytes
        if count is None:
            raise InputError(f"tensor {tensor!r} has no size, expected bytes of every tensor", where=self.name)
        return count

    def made(self, op: Op) -> list[str]:
        """The storages that `op` makes."""
        return sorted({t for t in op.outputs if t is not None and self.owner[t] == t})

    def read(self, calls: Iterable[Call]) -> set[str]:
        """The storages that `calls` read."""
        return {self.owner[t] for call in calls for t in call.inputs}

    def held(self, trace: Trace) -> frozenset[str]:
        """Storages of forward ops that the caller holds to the end of the step: outputs and new buffer values."""
        made = {t for op in self.forward for t in self.made(op)}
        return frozenset(made & {self.owner[t] for t in (*trace.outputs, *(value for _, value in trace.updates))})


def name_of(call: Call) -> str:
    """The name of a node's implementation; an op's own call is `default`."""
    return call.name if isinstance(call, Implementation) else "default"


def calls_of(op: Op) -> list[Call]:
    """The calls that a plan chooses between, the op's own first. In-place calls of the forward pass and calls for
    recomputations are no choices: their nodes decide."""
    others = (call for call in op.implementations if not call.again)
    return [op, *(call for call in others if op.phase == "backward" or call.overwrites is None)]
