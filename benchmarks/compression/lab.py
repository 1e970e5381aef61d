"""Training under compression plans between hosts of a lab, compared with DistributedDataParallel and its hooks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from benchmarks.common import Row, Table, machine, progress
from benchmarks.compression.training import NOTHING
from treadle.planner.documents import store
from treadle.planner.documents.compression_costs import CompressionCosts
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.trace import Trace
from treadle.planner.passes import require_pass
from treadle.planner.passes.compression.baselines import baselines
from treadle.planner.passes.compression.decided import decided, described
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.extract import problem_of
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.probe.resolve import load_hardware

RATES: dict[str, float | None] = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "loopback": None}
"""Of the links of two hosts; on loopback there are two processes of one host."""
COMPRESSORS = ("fp16", "int8", "efsignsgd", "topk:0.01", "dgc:0.01")
EVERYTHING = "dgc:0.01"
SIZES = "1K,16K,256K,1M,4M,16M"
ENTRY = "benchmarks.compression.training"
RUNS, ROUNDS, WITHIN, SLOWER = 3, 60, 0.15, 1.03
METHODS = {
    "joint": ["--method", "joint"],
    "Espresso": ["--method", "espresso", "--as-published"],
    "Cupcake": ["--method", "cupcake", "--as-published"],
}
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
"""One thread a rank: there are two ranks, on two cores at least."""
PROFILE = """kind: hardware
version: 1
name: pair
nodes: {nodes}
devices:
  - {{model: a process on a CPU, kind: cpu, count: {devices}}}
{between}
sources: {{nodes: "by definition, two ranks"}}
"""
LINK = "{{kind: ethernet, alpha_us: 30, beta_us_per_MB: {beta:.0f}}}"
LOOPBACK = "links:\n" + "".join(
    f"  - {{src: {one}, dst: {1 - one}, kind: loopback, alpha_us: 80, beta_us_per_MB: 370}}\n" for one in range(2)
)


def tables() -> Iterator[Table]:
    """Iterations under compression plans between hosts of a lab: against DDP and its hooks; predicted and measured."""
    for name, rate in RATES.items():
        with TemporaryDirectory() as folder:
            yield _table(name, rate, Path(folder))


def _table(name: str, rate: float | None, folder: Path) -> Table:
    hardware, costs, trace = (folder / each for each in ("pair.yaml", "costs.yaml", "step.json"))
    hardware.write_text(_profile(rate))
    ranks = _ranks(hardware, rate)
    progress(f"{name}: measure")
    wanted = [word for each in COMPRESSORS for word in ("--compression", each)]
    _run([*ranks, "-m", "treadle", "profile", "measure", *wanted, "--sizes", SIZES, "-o", str(costs)])
    captured = [f"{ENTRY}:small", "--train", "--optimizer", "sgd", "--measure", "-o", str(trace)]
    _treadle(["trace", "capture", *captured])
    made = problem_of(
        store.load(trace, Trace), load_hardware(str(hardware)), store.load(costs, CompressionCosts), COMPRESSORS
    )
    given = folder / "problem.json"
    store.save(scaled(made, _trained(ranks, [])[NOTHING]), given)
    progress(f"{name}: plan")
    files = {method: folder / f"{method}.json" for method in METHODS}
    for method, options in METHODS.items():
        _treadle(["plan", "compression", "--problem", str(given), *options, "-o", str(files[method])])
    plans = {method: _load(file) for method, file in files.items()}
    files["everything"] = folder / "everything.json"
    plans["everything"] = _everything(plans["joint"])
    store.save(plans["everything"], files["everything"])
    progress(f"{name}: train")
    measured = _trained(ranks, list(files.values()))
    return _compared(name, measured, {each: plan.decisions for each, plan in plans.items()})


def scaled(problem: CompressionProblem, alone_ms: float) -> CompressionProblem:
    """With times of forward and backward pass scaled so that an iteration without an exchange takes `alone_ms`: two
    ranks on one machine are slower than the single process in which the operators of the trace were measured."""
    factor = alone_ms * 1e6 / (problem.forward_ns + problem.backward_ns)
    gradients = tuple(replace(each, backward_ns=round(factor * each.backward_ns)) for each in problem.gradients)
    return replace(problem, forward_ns=round(factor * problem.forward_ns), gradients=gradients)


def _trained(ranks: Sequence[str], plans: Sequence[Path]) -> dict[str, float]:
    """ms of an iteration by exchange, the median of several runs."""
    runs: list[dict[str, float]] = []
    for _ in range(RUNS):
        printed = _run([*ranks, "-m", ENTRY, str(ROUNDS), *map(str, plans)])
        runs.append(json.loads(printed[printed.index("{") :]))
    return {name: median(run[name] for run in runs) for name in runs[0]}


def _compared(name: str, measured: dict[str, float], decisions: dict[str, CompressionDecisions]) -> Table:
    best = min(ms for each, ms in measured.items() if each not in ("joint", NOTHING))
    rows: list[Row] = []
    for each, ms in measured.items():
        row: Row = {"exchange": each, "ms": ms, "x joint": ms / measured["joint"]}
        if each in decisions:
            predicted = decisions[each].time_ns / 1e6
            close = abs(predicted / ms - 1) <= WITHIN
            row |= {"predicted ms": predicted, "predicted / measured": predicted / ms}
            row |= {"within 15 %": "yes" if close else "MISSED", "plan": described(decisions[each])}
        rows.append(row)
    slower = measured["joint"] / best
    verdict = "met" if slower <= SLOWER else "MISSED"
    return Table(
        f"GPT-2 of 1.3 million parameters on two ranks, {name}: ms of an iteration",
        rows,
        (f"joint takes {slower:.2f} of the best other (target: at most {SLOWER}): {verdict}", machine()),
    )


def _everything(plan: Plan[CompressionDecisions]) -> Plan[CompressionDecisions]:
    """The same plan with every gradient compressed alone."""
    problem = plan.decisions.problem
    groups = baselines(Evaluator(problem), EVERYTHING)["everything, flat allgather"]
    return replace(plan, decisions=decided(problem, groups))


def _load(file: Path) -> Plan[CompressionDecisions]:
    return require_pass(store.load(file, Plan), CompressionDecisions, str(file))


def _profile(rate: float | None) -> str:
    if rate is None:
        return PROFILE.format(nodes=1, devices=2, between=LOOPBACK)
    link = LINK.format(beta=8 * MEBIBYTE * 1e6 / rate)
    return PROFILE.format(nodes=2, devices=1, between=f"network: {link}")


def _ranks(hardware: Path, rate: float | None) -> list[str]:
    """The start of a command that runs Python on every rank."""
    if rate is None:
        return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return [sys.executable, "-m", "treadle", "lab", "run", str(hardware), "--", sys.executable]


def _treadle(words: Sequence[str]) -> None:
    _run([sys.executable, "-m", "treadle", *words])


def _run(command: Sequence[str]) -> str:
    """What the command prints on the first rank. Raises SystemExit with what it says when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ALONE)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    lines = [line.removeprefix("[node0] ") for line in done.stdout.splitlines() if not line.startswith("[node1] ")]
    return "\n".join(lines)
