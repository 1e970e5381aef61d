"""The optimizer step of data parallelism: gradients are summed over all ranks, then every parameter is updated.

All parameters together are one dimension N whose parts are the tensors, so that one kernel serves them all and norms
are those of each tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from treadle.planner.documents.nearest import meant
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import Dtype
from treadle.planner.passes.fusion.find.matches import Match, NoMatch, dtype_of

TEXT = """\
from treadle.fusion import *

N = dims("N")
g = Tensor("g", {gradient}, [N], Local)
{tensors}{scalars} = Scalars("{spaced}", f32)
total = AllReduce("+", g)
avg = {total} / group_size(WORLD)
{steps}{name} = Execute("{name}", [g, {names}, {scalars}], [{result}])
"""
MOMENTS = """\
m_ = Update(m, m * b1 + (1 - b1) * avg)
v_ = Update(v, v * b2 + (1 - b2) * avg * avg)
m1 = m_ / (1 - Pow(b1, t))
v1 = v_ / (1 - Pow(b2, t))
"""
LAMB = """\
u = m1 / (Sqrt(v1) + eps) + lam * p
p_ = Update(p, p - lr * (Norm(p, per="tensor") / Norm(u, per="tensor")) * u)
"""
STEPS = {
    "sgd": ("lr", "", "p_ = Update(p, p - lr * avg)\n"),
    "adam": ("lr b1 b2 t eps", "m v", MOMENTS + "p_ = Update(p, p - lr * m1 / (Sqrt(v1) + eps))\n"),
    "lamb": ("lr b1 b2 t eps lam", "m v", MOMENTS + LAMB),
}
"""Scalars, state and the step of each optimizer."""
OPTIMIZERS = tuple(STEPS)


def text_of(optimizer: str, gradient: Dtype) -> str:
    """The program text of `optimizer` for gradients of that dtype; state is f32, with a copy of parameters in the
    gradients' dtype where they differ."""
    scalars, state, steps = STEPS[optimizer]
    mixed = gradient != "f32"
    names = ["p", *(["ph"] if mixed else []), *state.split()]
    dtypes = {name: gradient if name == "ph" else "f32" for name in names}
    return TEXT.format(
        name=optimizer,
        gradient=gradient,
        tensors="".join(f'{name} = Tensor("{name}", {dtypes[name]}, [N], Replicated)\n' for name in names),
        scalars=", ".join(scalars.split()),
        spaced=scalars,
        total="Cast(f32, total)" if mixed else "total",
        steps=steps + (f"ph_ = Update(ph, Cast({gradient}, p_))\n" if mixed else ""),
        names=", ".join(names),
        result="ph_" if mixed else "p_",
    )


def gradient_steps(trace: Trace, optimizer: str | None) -> tuple[tuple[Match, ...], tuple[NoMatch, ...]]:
    """One program for every dtype of gradients in `trace`. Raises InputError for an optimizer that is not known."""
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise InputError(f"found optimizer {optimizer!r}, {meant(optimizer, OPTIMIZERS)}")
    seen = next(iter(_seen(trace)), None)
    chosen = optimizer or seen or "adam"
    assumed = "" if seen or optimizer else f"the trace has no optimizer: {chosen} is assumed"
    sizes: dict[Dtype, list[int]] = {}
    parameters = {tensor.id: tensor for tensor in trace.tensors if tensor.role == "parameter"}
    for tensor in trace.tensors:
        if tensor.gradient_of in parameters and tensor.shape is not None and (elements := prod(tensor.shape)):
            sizes.setdefault(dtype_of(tensor.dtype, f"gradient {tensor.id}"), []).append(elements)
    found = []
    for dtype, parts in sorted(sizes.items()):
        name = chosen if len(sizes) == 1 else f"{chosen}_{dtype}"
        where = f"{len(parts)} gradient{'s' if len(parts) > 1 else ''}"
        found.append(
            Match(name, text_of(chosen, dtype), {"N": sum(parts)}, "data", 1, where, {"N": tuple(parts)}, assumed)
        )
    buckets = tuple(_buckets(trace)) if not found else ()
    for elements, dtype, count in buckets:
        where = f"{count} allreduce{'s' if count > 1 else ''} of {elements} elements"
        found.append(Match(f"{chosen}_{elements}", text_of(chosen, dtype), {"N": elements}, "data", count, where,
                           assumed=assumed))  # fmt: skip
    passed = () if found else (NoMatch("gradients", "the trace has none: it is of inference, or does not name them"),)
    return tuple(found), passed


def _seen(trace: Trace) -> Iterator[str]:
    """Optimizers that the names of operators contain."""
    for op in trace.ops:
        name = op.target.lower()
        if op.phase in ("optimizer", "unknown"):
            yield from (each for each in ("lamb", "adam", "sgd") if each in name)


def _buckets(trace: Trace) -> Iterator[tuple[int, Dtype, int]]:
    """Allreduces that an imported trace recorded, as (elements, dtype, how many)."""
    counts: dict[int, int] = {}
    for op in trace.ops:
        facts = op.comm or {}
        size = facts.get("bytes")
        if (
            "allreduce" in str(facts.get("collective", "")).replace("_", "").lower()
            and isinstance(size, int)
            and size >= 4
        ):
            counts[size // 4] = counts.get(size // 4, 0) + 1
    for elements, count in sorted(counts.items()):
        yield elements, "f32", count
