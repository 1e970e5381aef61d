"""The optimizer step of data parallelism: gradients are summed over all ranks, then every parameter is updated.

All parameters together are one dimension N whose parts are the tensors, so that one kernel serves them all and norms
are those of each tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from planner.errors import InputError
from planner.fusion.find.found import Found, Passed, dtype_of
from planner.fusion.program import Dtype
from planner.trace import Trace

SGD = """\
from planner.fusion.language import *

N = dims("N")
g = Tensor("g", {gradient}, [N], Local)
p = Tensor("p", {gradient}, [N], Replicated)
lr = Scalars("lr", {gradient})
total = AllReduce("+", g)
p_ = Update(p, p - lr * (total / group_size(WORLD)))
sgd = Execute("sgd", [g, p, lr], [p_])
"""
ADAM = """\
from planner.fusion.language import *

N = dims("N")
g = Tensor("g", {gradient}, [N], Local)
p = Tensor("p", f32, [N], Replicated)
{copy}m = Tensor("m", f32, [N], Replicated)
v = Tensor("v", f32, [N], Replicated)
lr, b1, b2, t, eps = Scalars("lr b1 b2 t eps", f32)
total = AllReduce("+", g)
avg = {sum} / group_size(WORLD)
m_ = Update(m, m * b1 + (1 - b1) * avg)
v_ = Update(v, v * b2 + (1 - b2) * avg * avg)
m1 = m_ / (1 - Pow(b1, t))
v1 = v_ / (1 - Pow(b2, t))
{step}{written}{name} = Execute("{name}", [g, p, {extra}m, v, lr, b1, b2, t, eps{more}], [{result}])
"""
STEPS = {
    "adam": "p_ = Update(p, p - lr * m1 / (Sqrt(v1) + eps))\n",
    "lamb": "u = m1 / (Sqrt(v1) + eps) + lam * p\n"
    'p_ = Update(p, p - lr * (Norm(p, per="tensor") / Norm(u, per="tensor")) * u)\n',
}
OPTIMIZERS = ("sgd", *STEPS)


def text_of(optimizer: str, gradient: Dtype) -> str:
    """The program text of `optimizer` for gradients of that dtype; state is f32, with a copy of parameters in the
    gradients' dtype where they differ."""
    if optimizer == "sgd":
        return SGD.format(gradient=gradient)
    mixed = gradient != "f32"
    text = ADAM.format(
        name=optimizer,
        gradient=gradient,
        sum="Cast(f32, total)" if mixed else "total",
        copy=f'ph = Tensor("ph", {gradient}, [N], Replicated)\n' if mixed else "",
        step=STEPS[optimizer],
        written=f"ph_ = Update(ph, Cast({gradient}, p_))\n" if mixed else "",
        extra="ph, " if mixed else "",
        more=", lam" if optimizer == "lamb" else "",
        result="ph_" if mixed else "p_",
    )
    if optimizer == "lamb":
        text = text.replace('Scalars("lr b1 b2 t eps", f32)', 'Scalars("lr b1 b2 t eps lam", f32)')
        text = text.replace("lr, b1, b2, t, eps = ", "lr, b1, b2, t, eps, lam = ")
    return text


def gradient_steps(trace: Trace, optimizer: str | None) -> tuple[tuple[Found, ...], tuple[Passed, ...]]:
    """One program for every dtype of gradients in `trace`. Raises InputError for an optimizer that is not known."""
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise InputError(f"found optimizer {optimizer!r}, expected one of {', '.join(OPTIMIZERS)}")
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
            Found(name, text_of(chosen, dtype), {"N": sum(parts)}, "data", 1, where, {"N": tuple(parts)}, assumed)
        )
    buckets = tuple(_buckets(trace)) if not found else ()
    for elements, dtype, count in buckets:
        where = f"{count} allreduce{'s' if count > 1 else ''} of {elements} elements"
        found.append(Found(f"{chosen}_{elements}", text_of(chosen, dtype), {"N": elements}, "data", count, where,
                           assumed=assumed))  # fmt: skip
    passed = () if found else (Passed("gradients", "the trace has none: it is of inference, or does not name them"),)
    return tuple(found), passed


def _seen(trace: Trace) -> Iterator[str]:
    """Optimizers that the names of operators tell of."""
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
