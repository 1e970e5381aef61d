"""Training with sparse gradients between hosts of a lab: plans, PyTorch's exchanges, and the schemes of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.common import Row, Table, machine, progress
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.sparse_costs import SparseCosts
from treadle.planner.documents.sparsity import Sparsity
from treadle.planner.passes.sparse.decided import decided, described
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.extract import problem_of
from treadle.planner.passes.sparse.planning import SparseOptions, plan_sparse
from treadle.probe.index_sets import RecordedSets, RecordedTensor
from treadle.probe.resolve import load_hardware
from treadle.probe.sparsity import sparsity_of

MODELS = ("dlrm", "embedding_lm")
HOSTS = (4, 8)
RATES = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9}
OTHERS = {"SparCML": "sparcml", "OmniReduce": "omnireduce", "planned dense": "dense", "Zen": "zen"}
"""Schemes of others, and some of ours, that every gradient is made to use."""
PLANS = {"plan": SparseOptions(), "plan, any order": SparseOptions(any_order=True)}
SECONDS, SLOWER, WITHIN = 25, 1.03, 0.15
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
"""One thread a rank."""
PROFILE = """kind: hardware
version: 1
name: hosts
nodes: {hosts}
devices:
  - {{model: a process on a CPU, kind: cpu, count: 1}}
network: {{kind: ethernet, alpha_us: {alpha:.1f}, beta_us_per_MB: {beta:.0f}}}
sources: {{nodes: "by definition", network: "the lab's"}}
"""


def tables() -> Iterator[Table]:
    """Training with sparse gradients between 4 and 8 hosts of a lab: plans, PyTorch, SparCML, OmniReduce; bytes."""
    for hosts in HOSTS:
        for rate in RATES:
            with TemporaryDirectory() as folder:
                yield from _measured(hosts, rate, Path(folder))


def _measured(hosts: int, rate: str, folder: Path, models: Sequence[str] = MODELS) -> Iterator[Table]:
    hardware, costs = folder / "hosts.yaml", folder / "costs.yaml"
    beta = 8 * MEBIBYTE * 1e6 / RATES[rate]
    hardware.write_text(profile(hosts, 30, beta))
    progress(f"{hosts} hosts, {rate}: measure")
    printed = on_hosts(hardware, ["benchmarks.sparse.costs", str(costs)])
    alpha_us, found_beta = map(float, printed.split()[-2:])
    known = folder / "measured.yaml"
    known.write_text(profile(hosts, alpha_us, max(beta, found_beta)))
    for model in models:
        progress(f"{hosts} hosts, {rate}: {model}")
        problem = problem_of(recorded(model, hosts), load_hardware(str(known)), store.load(costs, SparseCosts))
        plans = {name: plan_sparse(problem, options=options) for name, options in PLANS.items()}
        plans |= {name: _all_by(plans["plan"], scheme) for name, scheme in OTHERS.items()}
        files = [folder / f"{name}.json" for name in plans]
        for file, plan in zip(files, plans.values(), strict=True):
            store.save(plan, file)
        printed = on_hosts(hardware, ["benchmarks.sparse.training", model, str(SECONDS), *map(str, files)])
        found = json.loads(printed[printed.index("{") :])
        yield compared(f"{model}, {hosts} hosts, {rate}", found, {name: plan.decisions for name, plan in plans.items()})


def _all_by(plan: Plan[SparseDecisions], scheme: str) -> Plan[SparseDecisions]:
    """The same problem with every gradient exchanged by one scheme."""
    problem = plan.decisions.problem
    return replace(plan, decisions=decided(problem, "same", [scheme] * len(problem.gradients)))


def recorded(model: str, hosts: int) -> Sparsity:
    """The sparsity of the batches that hosts train on."""
    from benchmarks.sparse.training import BATCHES, batches, built, sparse_gradients

    by_rank = [list(sparse_gradients(model, batches(model, rank))) for rank in range(hosts)]
    made, _ = built(model)
    shapes = {name: tuple(parameter.shape) for name, parameter in made.named_parameters()}
    tensors = tuple(
        RecordedTensor(
            name=name,
            form="coo",
            unit="row",
            units=shapes[name][0],
            width=shapes[name][1],
            sets=tuple(
                tuple(each[step][name]._indices()[0].numpy().astype(np.int32) for each in by_rank)
                for step in range(BATCHES)
            ),
        )
        for name in by_rank[0][0]
    )
    return sparsity_of(RecordedSets(model, tensors, {}))


def compared(title: str, found: dict[str, Any], decisions: dict[str, SparseDecisions]) -> Table:
    """What was measured next to what was predicted, and whether the plan is at most SLOWER of the best other's step."""
    steps, exchanges, sizes = found["step"], found["exchange"], found["bytes"]
    names = list(dict.fromkeys((*steps, *exchanges)))
    others = {name: ms for name, ms in steps.items() if name not in (*PLANS, "no exchange")}
    best = min(others, key=lambda name: others[name])
    rows: list[Row] = []
    for name in names:
        row: Row = {"exchange": name, "step ms": steps.get(name)}
        row["x plan"] = None if name not in steps else steps[name] / steps["plan"]
        row["exchange ms"] = exchanges.get(name)
        if name in decisions:
            predicted, measured = decisions[name].time_ns / 1e6, exchanges[name]
            row |= {"predicted ms": predicted, "predicted / measured": predicted / measured}
            row |= {"within 15 %": "yes" if abs(predicted / measured - 1) <= WITHIN else "MISSED"}
            row |= {"KB sent": sizes[name]["sent"] / 1e3}
            row |= {"as counted": "yes" if sizes[name]["same"] else "MISSED"}
            row |= {"planned / busiest": sizes[name]["planned"] / sizes[name]["busiest"]}
        rows.append(row)
    slower = steps["plan"] / others[best]
    notes = (
        f"plan: {described(decisions['plan'])}; any order: {described(decisions['plan, any order'])}",
        f"the plan's step takes {slower:.3f} of that of {best}, the best other (target: at most {SLOWER}): "
        f"{'met' if slower <= SLOWER else 'MISSED'}",
        f"medians of the slowest rank, in turns; exchange: all sparse gradients of a batch; {machine()}",
    )
    return Table(f"{title}: ms", rows, notes)


def profile(hosts: int, alpha_us: float, beta: float) -> str:
    """The profile of hosts with a link each: us for a message, and for a MiB of payload."""
    return PROFILE.format(hosts=hosts, alpha=alpha_us, beta=beta)


def on_hosts(hardware: Path, words: Sequence[str]) -> str:
    """What a module of Python prints on the first host, when it runs on all of them. Raises SystemExit with what it
    says when it fails."""
    command = [sys.executable, "-m", "treadle", "lab", "run", str(hardware), "--", sys.executable, "-m", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ALONE)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()[-3000:]}")
    first = "[node0] "
    return "\n".join(line.removeprefix(first) for line in done.stdout.splitlines() if line.startswith(first))
