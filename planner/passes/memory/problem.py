"""The memory problem as data: forward nodes, backward nodes, bytes and times (MONeT, section 4.1).

Nodes are numbered from 0 in execution order. Forward node i makes x_i. Backward nodes run in list order, so the
stage that the formulas call k = K..1 is list index K - k.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record

VERSION = 1
RESERVE = "reserve"
"""The part of `base` that plans must not use."""

FAMILIES = ("conv", "out", "int", "inplace", "grad-inplace", "rng", "statistics")
"""Convolution algorithms; backward by the output, or by an intermediate; forward in place; backward into the incoming
gradient; dropout masks drawn again; batch normalisation again by its first statistics. An implementation of two
families at once names both with a plus sign between them and needs both."""


class Forward(Record, frozen=True, kw_only=True):
    """One implementation of a forward node.

    `recompute_time_ns` and `recompute_workspace_bytes` are those of a recomputation, where they differ. A plan may use
    it only if its `family` is on (`treadle.planner.passes.memory.variants`).
    """

    name: Name = "default"
    family: str = ""
    workspace_bytes: Count = 0
    time_ns: Count = 0
    recompute_workspace_bytes: Count | None = None
    recompute_time_ns: Count | None = None

    def time(self, again: bool) -> int:
        """Nanoseconds of a first run, or of a recomputation."""
        return self.recompute_time_ns if again and self.recompute_time_ns is not None else self.time_ns

    def workspace(self, again: bool) -> int:
        """Workspace bytes of a first run, or of a recomputation."""
        if again and self.recompute_workspace_bytes is not None:
            return self.recompute_workspace_bytes
        return self.workspace_bytes


class Backward(Record, frozen=True, kw_only=True):
    """One implementation of a backward node; `needs` are the forward nodes whose outputs it reads (D_k^l)."""

    name: Name = "default"
    family: str = ""
    needs: tuple[Count, ...] = ()
    workspace_bytes: Count = 0
    time_ns: Count = 0
    grad_inplace: bool = False


class ForwardNode(Record, frozen=True, kw_only=True):
    """`inputs` are earlier forward nodes (N_i); `ops` are the trace ops it stands for, in order.

    A run that overwrites `inplace_of` takes `inplace_saves_ns` less than its implementation's time.
    """

    op: Name
    out_bytes: Count
    inputs: tuple[Count, ...] = ()
    impls: tuple[Forward, ...] = (Forward(),)
    kind: Literal["op", "intermediate"] = "op"
    creator: Count | None = None
    inplace_of: Count | None = None
    inplace_saves_ns: Count = 0
    recomputable: bool = True
    ops: tuple[Name, ...] = ()

    def time(self, impl: int, again: bool, inplace: bool = False) -> int:
        """Nanoseconds of one run with implementation `impl`: a first run or a recomputation, in place or not."""
        return self.impls[impl].time(again) - (self.inplace_saves_ns if inplace else 0)

    def fastest(self, again: bool) -> int:
        """The fastest implementation of a first run, or of a recomputation; the first of several."""
        return min(range(len(self.impls)), key=lambda impl: self.impls[impl].time(again))


class BackwardNode(Record, frozen=True, kw_only=True):
    """`live_grad_bytes` is |Lhat_k|, `out_grad_bytes` is |y_k|; `ops` are the trace ops it stands for, in order."""

    op: Name
    out_grad_bytes: Count
    live_grad_bytes: Count
    impls: tuple[Backward, ...] = (Backward(),)
    ops: tuple[Name, ...] = ()


class MemoryProblem(Document, frozen=True, kw_only=True, tag_field="kind", tag="memory-problem"):
    """`base` is resident for the whole step, by category in bytes; its sum is B. `plain_peak_bytes` is the peak of the
    step in plain PyTorch, only for comparison; absent if unknown."""

    version: Positive
    budget_bytes: Count
    base: dict[str, Count]
    fwd: tuple[ForwardNode, ...]
    bwd: tuple[BackwardNode, ...]
    plain_peak_bytes: Count | None = None

    @property
    def base_bytes(self) -> int:
        return sum(self.base.values())

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for every broken cross reference."""
        size = len(self.fwd)
        if self.version > VERSION:
            yield "$.version", str(self.version), f"at most {VERSION}; a newer treadle wrote it"
        if not size:
            yield "$.fwd", "no node", "at least one forward node"
        if not self.bwd:
            yield "$.bwd", "no node", "at least one backward node; a step without backward has nothing to recompute"
        for category, count in sorted(self.base.items()):
            if count < 0:
                yield f"$.base.{category}", str(count), "bytes, at least 0"
        yield from self._family_problems()
        for i, node in enumerate(self.fwd):
            if not node.impls:
                yield f"$.fwd[{i}].impls", "no implementation", "at least one"
            for place, j in enumerate(node.inputs):
                if j >= i:
                    yield f"$.fwd[{i}].inputs[{place}]", str(j), f"an earlier node, below {i}"
                elif self.fwd[j].kind != "op":
                    yield (
                        f"$.fwd[{i}].inputs[{place}]",
                        f"intermediate {j}",
                        "a node of kind op; backward reads the rest",
                    )
            quickest = min((impl.time(again) for impl in node.impls for again in (False, True)), default=0)
            if node.inplace_saves_ns > quickest:
                expected = f"at most the {quickest} ns of its fastest implementation"
                yield f"$.fwd[{i}].inplace_saves_ns", str(node.inplace_saves_ns), expected
            if (node.kind == "intermediate") != (node.creator is not None):
                yield f"$.fwd[{i}].creator", str(node.creator), "a creator for intermediates and for nothing else"
            if node.creator is not None and node.creator not in node.inputs:
                yield f"$.fwd[{i}].creator", str(node.creator), "one of the inputs"
        if all(j < i for i, node in enumerate(self.fwd) for j in node.inputs):
            yield from self._inplace_problems()
        for k, bwd in enumerate(self.bwd):
            if not bwd.impls:
                yield f"$.bwd[{k}].impls", "no implementation", "at least one"
            for at, impl in enumerate(bwd.impls):
                for place, j in enumerate(impl.needs):
                    if j >= size:
                        yield f"$.bwd[{k}].impls[{at}].needs[{place}]", str(j), f"a forward node, below {size}"

    def _family_problems(self) -> Iterator[tuple[str, str, str]]:
        families = [(f"$.fwd[{i}]", [impl.family for impl in node.impls]) for i, node in enumerate(self.fwd)]
        families += [(f"$.bwd[{i}]", [impl.family for impl in node.impls]) for i, node in enumerate(self.bwd)]
        for path, names in families:
            for place, name in enumerate(names):
                if name and not set(name.split("+")) <= set(FAMILIES):
                    expected = f"families of {', '.join(FAMILIES)}, with a plus sign between several"
                    yield f"{path}.impls[{place}].family", repr(name), expected

    def _inplace_problems(self) -> Iterator[tuple[str, str, str]]:
        """An output may be overwritten by its last reader, of equal size (MONeT, equations 4.10 and 4.11)."""
        last = {j: i for i, node in enumerate(self.fwd) for j in node.inputs}
        for i, node in enumerate(self.fwd):
            j, path = node.inplace_of, f"$.fwd[{i}].inplace_of"
            if j is None:
                continue
            if j not in node.inputs:
                yield path, str(j), "one of the inputs"
            elif last[j] != i:
                yield path, f"{j}, which forward node {last[j]} reads later", "an input that no later node reads"
            elif self.fwd[j].out_bytes != node.out_bytes:
                yield path, f"{j} of {self.fwd[j].out_bytes} bytes", f"an input of {node.out_bytes} bytes"
