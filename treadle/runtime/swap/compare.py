"""Run a folder that holds a generated swap step: under the plan, and without a limit on memory, and compare."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from treadle.capture.load import build_step, load_function
from treadle.codegen import emit
from treadle.codegen.swap.torch_swap import FILE_NAME
from treadle.codegen.targets import PLAN_NAME
from treadle.planner.documents import store
from treadle.planner.documents.artefact import FILE_NAME as MANIFEST
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.timeline_of import start_bytes, tasks_of
from treadle.planner.timeline.simulator import simulate
from treadle.runtime.comparison import equal_bits
from treadle.runtime.meter import Meter
from treadle.runtime.swap.cpu import Threads
from treadle.runtime.swap.cuda import Streams
from treadle.runtime.swap.emulation import Emulation
from treadle.runtime.swap.replay import replay
from treadle.runtime.swap.step import SwapStep, load_swap_step
from treadle.runtime.swap.swapped import SwappedStep

WARM_UP, TIMED = 2, 3
EMULATED = 1.0
SLOWER = 2.0
"""How much longer than operators take here they take on the emulated machine, so that it is they that are measured."""
TIMEOUT = 600.0
"""Seconds for one iteration."""


def run_folder(
    folder: Path | str,
    *,
    steps: int = 3,
    backend: str = "cpu",
    seed: int = 0,
    timeout: float | None = None,
    seconds: float | None = None,
    source: Path | str = ".",
) -> dict[str, Any]:
    """Run `steps` iterations twice, from the same seed on the same batches: under the plan, every place overwritten as
    soon as it is given up, and call by call in the order of the model with memory for every value.

    The model comes from the manifest's entry MODULE:FUNCTION, looked for in `source`. Returned, in bytes, ns and plain
    numbers: `losses` of both; `bit_equal`; `peak_bytes`: the arena, what was allocated outside it, both together as
    `swapped`, the `unconstrained` run's, the plan's `memory` and the `planned` peak of its tensors; `host_bytes` that
    the host keeps; `iteration_ns`: as `planned`, as `measured` (median), and as `simulated` from the times that the
    operators took here; `simulation_error`, of the latter to the measured. On the CPU the planned machine is emulated
    `pace` times as slow as it is, so that an iteration takes at least `seconds`, and times are those divided by `pace`.
    `allocator`: what a CUDA allocator counted more after the timed iterations than before them; `places`: how many
    operators write straight into the arena; `findings`, a sentence for each promise that did not hold: every output,
    parameter, buffer, optimizer state and gradient equal in every step to the last bit, and no allocation by a CUDA
    device after warm-up.

    Raises InputError for a folder that is no generated swap step or was changed, and for an operator that raises;
    CheckFailed where an iteration takes longer than `timeout` seconds; MissingBackendError for a backend that this
    machine lacks.
    """
    step, decisions, entry = _open(Path(folder))
    function = load_function(entry, source)

    def prepare(at: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
        torch.manual_seed(at)
        built = build_step(function, entry)
        return built.model if step.training else built.model.eval(), built.inputs

    model, _ = prepare(seed)
    constrained = SwappedStep(model, step, backend, poison=True, timeout=timeout or TIMEOUT)
    device = constrained.device
    free = Unconstrained(step, prepare(seed)[0].to(device), device)
    findings: dict[str, str] = {}
    losses: dict[str, list[float]] = {"unconstrained": [], "swapped": []}
    for number in range(steps):
        inputs = prepare(seed + 1 + number)[1]
        torch.manual_seed(seed + 1 + number)
        outputs, gradients = constrained.run(*inputs)
        torch.manual_seed(seed + 1 + number)
        expected = free.run(tuple(tensor.to(device) for tensor in inputs))
        constrained.synchronize()
        for name, values in (("swapped", outputs), ("unconstrained", expected[0])):
            losses[name].append(float(values[0]) if values[0].numel() == 1 else float(values[0].double().mean()))
        kept = {step.persistent[storage]: constrained.memory.host[storage] for storage in free.persistent}
        found = _named(outputs, gradients, kept)
        for name, value in _named(*expected, {step.persistent[key]: x for key, x in free.persistent.items()}).items():
            if not equal_bits(found[name], value.cpu()):
                findings.setdefault(
                    "values", f"{name} differs from the unconstrained run in step {number + 1}, expected equal bits"
                )
    beside = _beside(constrained, inputs)
    timing = _timing(constrained, decisions, inputs, EMULATED if seconds is None else seconds)
    if any(timing["allocator"].values()):
        more = ", ".join(f"{name} by {count}" for name, count in sorted(timing["allocator"].items()) if count)
        findings["allocator"] = f"the allocator's counts grew after warm-up, expected no allocation: {more}"
    free.measure(tuple(tensor.to(device) for tensor in inputs))
    return {
        "target": "torch-swap",
        "backend": backend,
        "steps": steps,
        "losses": losses,
        "bit_equal": "values" not in findings,
        "peak_bytes": {
            "unconstrained": free.peak_bytes,
            "swapped": step.arena_bytes + beside,
            "arena": step.arena_bytes,
            "outside": beside,
            "memory": decisions.problem.machine.memory_bytes,
            "planned": decisions.peak_bytes,
        },
        "host_bytes": sum(room.numel() * room.element_size() for room in constrained.memory.host.values()),
        "copied_bytes": {"in": decisions.in_bytes, "out": decisions.out_bytes},
        "places": constrained.memory.written(),
        **timing,
        "findings": list(findings.values()),
    }


class Unconstrained:
    """The step without a limit on memory. `persistent` are its parameters, buffers and states by storage."""

    def __init__(self, step: SwapStep, model: nn.Module, device: torch.device) -> None:
        self.step, self.device = step, device
        own = dict[str, Tensor](model.named_parameters()) | dict[str, Tensor](model.named_buffers())
        self.persistent = {key: own[name].detach() for name, key in (step.parameters | step.buffers).items()}
        states = {key: step.storages[key].empty(device).zero_() for key in step.optimizer.values()}
        self.persistent.update(states)
        self.peak_bytes = 0

    def run(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        return replay(self.step, self.persistent, inputs, self.device)

    def measure(self, inputs: Sequence[Tensor]) -> None:
        """The peak of one more iteration."""
        with Meter(list(self.persistent.values()), list(inputs)) as meter:
            self.run(inputs)
        self.peak_bytes = meter.peak_bytes


def _named(
    outputs: Sequence[Tensor], gradients: Mapping[str, Tensor], persistent: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Everything that an iteration leaves, by what errors call it."""
    found = {f"output {number}": value for number, value in enumerate(outputs)}
    found |= {f"the gradient of {name!r}": value for name, value in gradients.items()}
    return found | {f"{name!r}": value for name, value in persistent.items()}


def _beside(step: SwappedStep, inputs: Sequence[Tensor]) -> int:
    """Most bytes of tensors that one iteration's operators make outside of the arena."""
    memory = step.memory
    meter = Meter([memory.arena, *memory.host.values()])
    before = meter.live_bytes
    step.run(*inputs, watching=meter)
    return meter.peak_bytes - before


def _timing(step: SwappedStep, decisions: SwapDecisions, inputs: Sequence[Tensor], seconds: float) -> dict[str, Any]:
    """How long iterations take without poison, and how long they should; in ns of the planned machine."""
    runner = step.runner
    step.poison = runner.poison = False
    problem = decisions.problem
    nodes = step.step.nodes
    computing = [number for number, node in enumerate(nodes) if node.kind == "compute"]
    pace = 1.0
    counts: dict[str, int] = {}
    times: list[list[int]] = []
    makespans: list[int] = []
    taken: list[int] = []
    for number in range(WARM_UP + TIMED):
        if number == WARM_UP and isinstance(runner, Streams):
            counts = runner.counters()
        if number == WARM_UP and isinstance(runner, Threads):
            pace = max(seconds * 1e9 / max(decisions.time_ns, 1), SLOWER * sum(taken) / max(problem.ideal_ns, 1))
            runner.emulation = Emulation(problem.machine, {op.id: op.time_ns for op in problem.ops}, pace)
        step.run(*inputs, timed=True)
        spans = step.spans
        assert spans is not None
        taken = [spans.end[at] - spans.start[at] for at in computing]
        if number >= WARM_UP:
            times.append(taken)
            makespans.append(spans.makespan_ns)
    after = runner.counters() if isinstance(runner, Streams) else {}
    medians = [round(statistics.median(column) / pace) for column in zip(*times, strict=True)]
    simulated = simulated_ns(decisions, dict(zip([nodes[at].item for at in computing], medians, strict=True)))
    measured = round(statistics.median(makespans) / pace)
    return {
        "pace": pace,
        "iteration_ns": {"planned": decisions.time_ns, "simulated": simulated, "measured": measured},
        "operators_ns": {"planned": problem.ideal_ns, "measured": sum(medians)},
        "simulation_error": (simulated - measured) / measured if measured else 0.0,
        "allocator": {name: after[name] - count for name, count in counts.items()},
    }


def simulated_ns(decisions: SwapDecisions, times: Mapping[str, int]) -> int:
    """The simulated time of the plan where each operator takes its `times` in ns."""
    problem = decisions.problem
    ops = tuple(replace(op, time_ns=times[op.id]) for op in problem.ops)
    timed = replace(decisions, problem=replace(problem, ops=ops))
    return simulate(*tasks_of(timed), start_bytes(timed)).makespan


def _open(folder: Path) -> tuple[SwapStep, SwapDecisions, str]:
    """The step, the plan it was made from and the model's entry, unchanged since they were written."""
    where = str(folder / MANIFEST)
    manifest, texts = emit.read(folder)
    if manifest.target != "torch-swap":
        raise InputError(f"found an artefact of target {manifest.target}, expected torch-swap", where=where)
    if manifest.entry is None:
        raise InputError("found no entry, expected MODULE:FUNCTION of the model", where=where, path="$.entry")
    place = str(folder / PLAN_NAME)
    plan = require_pass(store.loads(texts[PLAN_NAME], place, Plan), SwapDecisions, place)
    return load_swap_step(texts[FILE_NAME]), plan.decisions, manifest.entry
