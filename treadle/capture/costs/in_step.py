"""Times of calls measured inside the step, with the caches as the calls before them leave them.

A call that is repeated in isolation finds its operands in cache, which flatters kernels that move more memory. Here the
step's own calls run in order, each on what those before it made, and at each op one of its calls is timed: its own and
its implementations take turns, over the ops that are alike and over several passes.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import torch
from msgspec.structs import replace

from treadle.capture.costs.counting import signature
from treadle.capture.costs.measuring import Measured, sample, with_measured
from treadle.capture.operator_calls import call
from treadle.planner.documents.trace import Implementation, Op, Tensor, Trace
from treadle.planner.graph.liveness import owners, sweep

SAMPLES, MOST_SECONDS = 3, 60.0
HEADROOM = 1.5
"""The machine has to have this many times the step's own peak free; workspaces and fragments come on top of it."""
GAIN = 0.95
"""Times nearer than this to the own call's are no difference."""

log = logging.getLogger("treadle.costs")


def with_measured_in_step(
    trace: Trace,
    progress: Callable[[int, int, str], None] = lambda done, of, target: None,
    *,
    device: str = "cpu",
    known: dict[str, Measured] | None = None,
) -> Trace:
    """`with_measured`, with the least of each call's times in the step where the step fits into memory, and without
    implementations that lose: neither faster than the op's own call, nor reading less, nor of less workspace.

    Ops whose turn did not come within a minute keep their times. A step that cannot run on random data keeps them all,
    and a log line says why.
    """
    known = {} if known is None else known
    measured = with_measured(trace, progress, device=device, known=known)
    if sweep(measured).peak * HEADROOM > psutil.virtual_memory().available:
        return without_losers(measured)
    run = StepPasses(measured, device, known)
    start, passes = time.perf_counter(), SAMPLES * max(map(len, run.samples.values()), default=0)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for done in range(passes):
                if run.complete or time.perf_counter() - start > MOST_SECONDS:
                    break
                progress(done, passes, "the step as a whole")
                run.once()
    except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError, MemoryError) as error:
        reason = " ".join(str(error).split())[:300]
        log.warning("%s cannot run on random data, so its calls were timed one by one: %s", trace.name, reason)
        return without_losers(measured)
    return without_losers(replace(measured, ops=tuple(map(run.timed, measured.ops))))


class StepPasses:
    """Passes over a step, and the times in them by kind of op and call, the own call first."""

    def __init__(self, trace: Trace, device: str, known: dict[str, Measured]) -> None:
        self.trace, self.device, self.known = trace, device, known
        tensors = {tensor.id: tensor for tensor in trace.tensors}
        self.kinds = {op.id: "\n".join(signature(each, tensors) for each in op.variants) for op in trace.ops}
        """One text for all ops with the same calls on tensors of the same layout."""
        self.digest = hashlib.sha256("\n".join(self.kinds.values()).encode()).hexdigest()[:16]
        self.turns: Counter[str] = Counter()
        self.owner = owners(trace)
        self.last = {key: place for place, op in enumerate(trace.ops) for each in op.variants for key in each.inputs}
        """The place of the last op that reads a tensor, by any of its calls."""
        self.samples: dict[str, list[list[int]]] = {self.kinds[op.id]: [[] for _ in op.variants] for op in trace.ops}
        for kind, times in self.samples.items():
            before = [known.get(self._key(kind, place)) for place in range(len(times))]
            if all(before):
                self.samples[kind] = [[taken[0]] * SAMPLES for taken in before if taken]

    def _key(self, kind: str, variant: int) -> str:
        return f"step {self.digest} {hashlib.sha256(kind.encode()).hexdigest()[:16]} {variant}"

    @property
    def complete(self) -> bool:
        return all(len(found) >= SAMPLES for variants in self.samples.values() for found in variants)

    def once(self) -> None:
        """One pass over the step, which adds a sample for each op."""
        made = {key for op in self.trace.ops for key in op.outputs}
        leaves = [tensor for tensor in self.trace.tensors if tensor.id in self.last and tensor.id not in made]
        generator = torch.Generator(self.device).manual_seed(0)
        live = {tensor.id: _mild(sample(tensor, generator), tensor) for tensor in leaves}
        ends: dict[int, list[str]] = {}
        for key, place in self.last.items():
            ends.setdefault(place, []).append(key)
        for place, op in enumerate(self.trace.ops):
            variants = self.samples[self.kinds[op.id]]
            turn = self.turns[self.kinds[op.id]] % len(variants)
            self.turns[self.kinds[op.id]] += 1
            other = op.implementations[turn - 1] if turn else None
            if other is not None and not other.again:
                variants[turn].append(self._time(other, self._copied(other, live))[0])
            taken, results = self._time(op, live)
            if other is None:
                variants[0].append(taken)
            live.update({key: x for key, x in zip(op.outputs, results, strict=False) if key in self.last})
            if other is not None and other.again:
                variants[turn].append(self._time(other, live)[0])
            for key in ends.get(place, ()):
                live.pop(key, None)

    def _copied(self, variant: Implementation, live: Mapping[str, Any]) -> Mapping[str, Any]:
        """`live` with copies of what the call overwrites, which the op's own call still reads."""
        if variant.overwrites is None:
            return live
        lost = self.owner[variant.overwrites]
        return {**live, **{key: live[key].clone() for key in variant.inputs if self.owner[key] == lost}}

    def _time(self, variant: Op | Implementation, live: Mapping[str, Any]) -> tuple[int, list[Any]]:
        start = time.perf_counter_ns()
        results = call(variant, live)
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter_ns() - start, results

    def timed(self, op: Op) -> Op:
        """`op` with its times in the step, unless one of its calls has none."""
        kind = self.kinds[op.id]
        if not all(self.samples[kind]):
            return op
        own, *others = map(min, self.samples[kind])
        timed = tuple(replace(variant, time_ns=ns) for variant, ns in zip(op.implementations, others, strict=True))
        op = replace(op, time_ns=own, implementations=timed)
        for place, variant in enumerate(op.variants):
            self.known[self._key(kind, place)] = (variant.time_ns or 0, variant.workspace_bytes or 0)
        return op


def _mild(value: torch.Tensor, tensor: Tensor) -> torch.Tensor:
    """Weights so small that values between 0 and 1 stay of that order from layer to layer."""
    if tensor.role != "parameter" or value.dim() < 2 or not value.is_floating_point():
        return value
    return value.mul_(2 / max(1, math.prod(value.shape[1:])))


def without_losers(trace: Trace) -> Trace:
    """`trace` without implementations that are neither faster than the op's own call nor need less memory."""
    return replace(trace, ops=tuple(map(_useful, trace.ops)))


def _useful(op: Op) -> Op:
    own = op.time_ns or 0

    def useful(variant: Implementation) -> bool:
        if (variant.time_ns or 0) < GAIN * own:
            return True
        smaller = (variant.workspace_bytes or 0) < (op.workspace_bytes or 0) or not set(op.inputs) <= set(
            variant.inputs
        )
        fewer = any(ours is None and own is not None for ours, own in zip(variant.outputs, op.outputs, strict=False))
        return not variant.again and (smaller or fewer or variant.overwrites is not None)

    def level(variant: Implementation) -> Implementation:
        return replace(variant, time_ns=own) if GAIN * own <= (variant.time_ns or 0) < own else variant

    return replace(op, implementations=tuple(level(variant) for variant in op.implementations if useful(variant)))
