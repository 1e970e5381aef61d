"""A folder of a compression plan, executed on synthetic gradients by processes over gloo, next to plain
DistributedDataParallel."""

from __future__ import annotations

import runpy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from treadle.codegen import emit
from treadle.codegen.compression.room import FILE_NAME
from treadle.codegen.python_form import require_form
from treadle.codegen.targets import PLAN_NAME
from treadle.host.cores import cores
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import CheckFailed
from treadle.planner.passes import pass_of, require_pass
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.runtime.launch import launch


class RankComparison(NamedTuple):
    """What one rank found; times are by step."""

    identity_equal: bool
    ranks_equal: bool
    relative_error: float
    sent_bytes: int
    planned_ns: list[int]
    plain_ns: list[int]


def run_folder(folder: Path, *, steps: int = 3, timeout: float | None = None) -> dict[str, Any]:
    """Run the hook in `folder` on the plan's number of ranks, with gradients of its sizes and the times of its backward
    pass, which are slept through.

    With the identity in place of compressors the means must be those of a dense exchange, to the last bit; with the
    plan's own all ranks must have the same. Returned: `identity_equal`, `ranks_equal`, `relative_error` of the means,
    `iteration_ns` and `sent_bytes` as planned and measured (the slowest rank's, its median over `steps`), and
    `findings`, a sentence for each promise that did not hold.

    Raises InputError for a folder that is not as it was generated, and for a compressor that treadle does not have;
    CheckFailed for a plan that fails its check, and what `launch` raises.
    """
    manifest, texts = emit.read(folder)
    require_form(manifest.target, texts[FILE_NAME], str(folder / FILE_NAME))
    plan = require_pass(store.load(folder / PLAN_NAME, Plan), CompressionDecisions, str(folder / PLAN_NAME))
    decisions = plan.decisions
    if found := pass_of(plan).findings(decisions):
        raise CheckFailed(f"{folder / PLAN_NAME}: not run, its check failed", tuple(found))
    decisions.require_algorithms(str(folder / PLAN_NAME))
    ranks = launch(decisions.problem.ranks, _compare, (str(folder), decisions, steps), timeout)
    identity, equal = (all(getattr(rank, name) for rank in ranks) for name in ("identity_equal", "ranks_equal"))
    findings = []
    if not identity:
        findings.append("with the identity as compressor the means are not those of a dense exchange")
    if not equal:
        findings.append("ranks ended with different gradients")
    return {
        "target": manifest.target,
        "backend": "gloo",
        "world": decisions.problem.ranks,
        "steps": steps,
        "identity_equal": identity,
        "ranks_equal": equal,
        "relative_error": max(rank.relative_error for rank in ranks),
        "iteration_ns": {
            "planned": decisions.time_ns,
            "measured": _slowest([rank.planned_ns for rank in ranks]),
            "uncompressed_planned": decisions.uncompressed_ns,
            "ddp_measured": _slowest([rank.plain_ns for rank in ranks]),
        },
        "sent_bytes": {"planned": decisions.sent_bytes, "measured": max(rank.sent_bytes for rank in ranks)},
        "findings": findings,
    }


def _slowest(times: Sequence[Sequence[int]]) -> int:
    """The median over steps of the time of the slowest rank."""
    return int(median(max(step) for step in zip(*times, strict=True)))


def _compare(rank: int, world: int, folder: str, decisions: CompressionDecisions, steps: int) -> RankComparison:
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from treadle.runtime.compression.attached import attach_ddp
    from treadle.runtime.compression.coders import IdentityCoders
    from treadle.runtime.compression.synthetic import SyntheticModel, random_gradients

    torch.set_num_threads(max(1, cores() // world))
    problem = decisions.problem

    def model_of(gradients: list[torch.Tensor]) -> DistributedDataParallel:
        return DistributedDataParallel(SyntheticModel(problem, gradients))

    def found_in(model: DistributedDataParallel) -> list[torch.Tensor]:
        grads = [model.module.get_parameter(gradient.name).grad for gradient in problem.gradients]
        return [grad for grad in grads if grad is not None]

    def means_of(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        sums = [gradient.clone() for gradient in gradients]
        for each in sums:
            distributed.all_reduce(each)
        return [each.div_(world) for each in sums]

    whole = random_gradients(problem, rank, whole=True)
    model = model_of(whole)
    exchange = attach_ddp(model, decisions, IdentityCoders(rank, world))
    _iterate(model, 1)
    exchange.close()
    identity = all(map(torch.equal, found_in(model), means_of(whole)))
    del model, whole

    gradients = random_gradients(problem, rank, whole=False)
    model = model_of(gradients)
    attach: Callable[..., Any] = runpy.run_path(str(Path(folder) / FILE_NAME))["attach"]
    exchange = attach(model)
    _iterate(model, 1)
    lost = norm = 0.0
    for one, mean in zip(found_in(model), means_of(gradients), strict=True):
        lost, norm = lost + (one - mean).square().sum().item(), norm + mean.square().sum().item()
    planned = _iterate(model, steps)
    sent, equal = exchange.statistics().sent_bytes, True
    for one in found_in(model):
        first = one.clone()
        distributed.broadcast(first, 0)
        equal = equal and torch.equal(one, first)
    exchange.close()
    del model
    plain_model = model_of(gradients)
    _iterate(plain_model, 2)  # buckets are rebuilt after the first one
    plain = _iterate(plain_model, steps)
    return RankComparison(identity, equal, (lost / norm) ** 0.5 if norm else 0.0, sent, planned, plain)


def _iterate(model: Any, steps: int) -> list[int]:
    """ns of iterations that all ranks begin together."""
    from torch import distributed

    times = []
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = None
        distributed.barrier()
        start = time.perf_counter_ns()
        model().backward()
        times.append(time.perf_counter_ns() - start)
    return times
