"""Which families of implementations a plan may use.

The variants are those of MONeT's ablation (section 4.5): the same problem with a smaller catalogue.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from msgspec.structs import replace

from treadle.planner.errors import InputError
from treadle.planner.passes.memory.problem import FAMILIES, Backward, BackwardNode, Forward, ForwardNode, MemoryProblem

Impl = TypeVar("Impl", Forward, Backward)

ALWAYS = frozenset({"inplace", "statistics"})
VARIANTS: dict[str, frozenset[str]] = {
    "noop": ALWAYS,
    "conv": ALWAYS | {"conv"},
    "out": ALWAYS | {"out"},
    "int": ALWAYS | {"int"},
    "conv+out": ALWAYS | {"conv", "out"},
    "all": frozenset(FAMILIES),
}
"""The families that each variant has. Without any choice an op still overwrites its input where it can, and batch
statistics are still kept, as in all experiments of MONeT."""


def allowed(family: str, families: Collection[str]) -> bool:
    """Whether an implementation of this family may be used where `families` are on."""
    return not family or set(family.split("+")) <= set(families)


def restrict(problem: MemoryProblem, families: Collection[str] | None, recompute: bool = True) -> MemoryProblem:
    """`problem` without the implementations of other families, and without intermediates that no op then reads.

    None stands for all families. Without `inplace` nothing is overwritten in the forward pass; without `statistics` a
    repeated run costs what the first one does; without `recompute` nothing runs again, and no state of the random
    number generator is kept for that. Implementations keep their order, so adding a family later moves none of those
    before it. Nodes keep their order and are numbered anew where some are gone; with the same families but `conv` on or
    off the numbers agree.

    Raises InputError for a node that is left without an implementation.
    """
    if families is None and recompute:
        return problem
    families = FAMILIES if families is None else families
    bwd = tuple(
        replace(node, impls=_kept(node.impls, families, f"$.bwd[{k}].impls")) for k, node in enumerate(problem.bwd)
    )
    fwd = tuple(
        replace(node, impls=_kept(node.impls, families, f"$.fwd[{i}].impls")) for i, node in enumerate(problem.fwd)
    )
    wanted = {i for node in bwd for impl in node.impls for i in impl.needs}
    left = [i for i, node in enumerate(fwd) if node.kind == "op" or i in wanted]
    number = {old: new for new, old in enumerate(left)}
    base = {category: size for category, size in problem.base.items() if recompute or category != "rng_state"}
    return replace(
        problem,
        base=base,
        fwd=tuple(_forward(fwd[i], number, families, recompute) for i in left),
        bwd=tuple(_renumbered(node, number) for node in bwd),
    )


def _kept(impls: tuple[Impl, ...], families: Collection[str], path: str) -> tuple[Impl, ...]:
    kept = tuple(impl for impl in impls if allowed(impl.family, families))
    if not kept:
        found = ", ".join(sorted({impl.family for impl in impls}))
        raise InputError(f"found implementations of {found} only, expected one of a family that is on", path=path)
    return kept


def _forward(node: ForwardNode, number: dict[int, int], families: Collection[str], recompute: bool) -> ForwardNode:
    overwrites = node.inplace_of if "inplace" in families else None
    impls = node.impls
    if "statistics" not in families:
        impls = tuple(replace(impl, recompute_workspace_bytes=None, recompute_time_ns=None) for impl in impls)
    return replace(
        node,
        inputs=tuple(number[j] for j in node.inputs),
        impls=impls,
        creator=None if node.creator is None else number[node.creator],
        inplace_of=None if overwrites is None else number[overwrites],
        inplace_saves_ns=node.inplace_saves_ns if overwrites is not None else 0,
        recomputable=node.recomputable and recompute,
    )


def _renumbered(node: BackwardNode, number: dict[int, int]) -> BackwardNode:
    impls = tuple(replace(impl, needs=tuple(number[i] for i in impl.needs)) for impl in node.impls)
    return replace(node, impls=impls)
