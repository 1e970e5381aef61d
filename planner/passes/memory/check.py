"""The independent checker of memory plans: it walks the program over the problem and recomputes everything.

Shares no code with the methods, the lowering or the simulator. A finding names the spot as `$.json.path`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.problem import RESERVE, MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, Instruction, RunBackward, RunForward


def check(decisions: MemoryDecisions) -> list[str]:
    """Errors of a plan; none for an accepted one.

    In an accepted plan every read finds its tensor live, nothing is freed or made twice, every forward op runs in the
    forward pass and every backward node exactly once in order, the budget holds at every instruction, and the recorded
    times and peaks are those of this walk.
    """
    problem = decisions.problem
    findings = [f"$.problem{path[1:]}: found {found}, expected {wanted}" for path, found, wanted in problem.problems()]
    if findings:
        return findings
    findings, walk = _walked(decisions)
    if findings:
        return findings
    over = walk.peak - problem.budget_bytes
    if over > 0:
        findings.append(
            f"$.program[{walk.peak_at}]: {walk.peak} bytes in use, {over} over the budget of {problem.budget_bytes}"
        )
    all_time, all_peak = _store_all(problem)
    for name, recorded, found in (
        ("objective_ns", decisions.objective_ns, walk.time),
        ("exact_peak_bytes", decisions.exact_peak_bytes, walk.peak),
        ("store_all_ns", decisions.store_all_ns, all_time),
        ("store_all_peak_bytes", decisions.store_all_peak_bytes, all_peak),
    ):
        if recorded != found:
            findings.append(f"$.{name}: found {recorded}, expected {found}")
    if not walk.peak <= decisions.bound_peak_bytes <= problem.budget_bytes:
        expected = f"between the peak {walk.peak} and the budget {problem.budget_bytes}"
        findings.append(f"$.bound_peak_bytes: found {decisions.bound_peak_bytes}, expected {expected}")
    return findings


def _walked(decisions: MemoryDecisions) -> tuple[list[str], _Walk]:
    walk, findings = _Walk(decisions.problem), []
    for place, instruction in enumerate(decisions.program):
        findings += [f"$.program[{place}]: {text}" for text in walk.step(instruction)]
    return [*findings, *(f"$.program: {text}" for text in walk.end())], walk


def with_figures(decisions: MemoryDecisions) -> MemoryDecisions:
    """`decisions` with the times and peaks of their program on their problem, whatever the budget.

    Raises InputError where the program does not run on it.
    """
    findings, walk = _walked(decisions)
    if findings:
        raise InputError(f"the program does not run on the problem of today: {findings[0]}; plan again")
    time, peak = _store_all(decisions.problem)
    most = max(walk.peak, min(decisions.bound_peak_bytes, decisions.problem.budget_bytes))
    return replace(
        decisions,
        objective_ns=walk.time,
        exact_peak_bytes=walk.peak,
        bound_peak_bytes=most,
        store_all_ns=time,
        store_all_peak_bytes=peak,
    )


def problem_now(decisions: MemoryDecisions, trace: Trace) -> MemoryProblem:
    """The problem of the trace at the plan's budget, reserve and families. Raises InputError for a trace that no memory
    problem can be made from."""
    from treadle.planner.passes.memory.extract.problem import problem_from_trace
    from treadle.planner.passes.memory.variants import restrict

    old = decisions.problem
    new = problem_from_trace(trace, old.budget_bytes, hold_gradients="gradients" in old.base)
    if RESERVE in old.base:
        new = replace(new, base={**new.base, RESERVE: old.base[RESERVE]})
    return restrict(new, decisions.families, decisions.recompute)


def check_against_trace(decisions: MemoryDecisions, trace: Trace) -> list[str]:
    """Differences between the problem that a plan solved and that of the trace; none means fresh.

    Raises InputError for a trace that no memory problem can be made from.
    """
    old, new = decisions.problem, problem_now(decisions, trace)
    findings = []
    if old.base != new.base:
        findings.append(f"$.problem.base: found {old.base}, expected {new.base} from the trace")
    for part in ("fwd", "bwd"):
        planned, traced = getattr(old, part), getattr(new, part)
        if len(planned) != len(traced):
            findings.append(f"$.problem.{part}: found {len(planned)} nodes, expected {len(traced)} from the trace")
        for place, (was, now) in enumerate(zip(planned, traced, strict=False)):
            if was != now:
                findings.append(f"$.problem.{part}[{place}]: found {was}, expected {now} from the trace")
    return findings


@dataclass
class _Walk:
    """The state of a device that executes the program. `ran` are the forward nodes that ran in this stage."""

    problem: MemoryProblem
    live: set[int] = field(default_factory=set)
    ran: set[int] = field(default_factory=set)
    stage: int = -1
    stage_done: bool = True
    time: int = 0
    peak: int = 0
    peak_at: int = 0
    steps: int = 0

    @property
    def back(self) -> int:
        """List index of the backward node that ends this stage; -1 in the forward pass."""
        return self.stage - 1

    def step(self, instruction: Instruction) -> Iterator[str]:
        match instruction:
            case EnterStage(k):
                yield from self._enter(k)
                self._use(0, 0)
            case _ if self.stage < 0:
                yield "comes before the first stage"
            case RunForward(i, impl, inplace):
                if i >= len(self.problem.fwd) or impl >= len(self.problem.fwd[i].impls):
                    yield f"runs forward node {i} with implementation {impl}, which the problem does not have"
                else:
                    yield from self._forward(i, impl, inplace)
            case Drop(i):
                if i not in self.live:
                    yield f"drops forward node {i}, which is not live"
                self.live.discard(i)
                self._use(0, 0)
            case RunBackward(k, impl):
                if k >= len(self.problem.bwd) or impl >= len(self.problem.bwd[k].impls):
                    yield f"runs backward node {k} with implementation {impl}, which the problem does not have"
                else:
                    yield from self._backward(k, impl)
            case _:
                assert_never(instruction)
        self.steps += 1

    def end(self) -> Iterator[str]:
        last = len(self.problem.bwd)
        if self.stage != last or not self.stage_done:
            yield f"ends in stage {last + 1 - self.stage}, expected the end of stage 1 with all backward nodes run"
        if self.live:
            yield f"leaves forward nodes {sorted(self.live)} live at its end"

    def _enter(self, k: int) -> Iterator[str]:
        if self.stage == 0:
            missing = [i for i, node in enumerate(self.problem.fwd) if node.kind == "op" and i not in self.ran]
            if missing:
                yield f"the forward pass ended without forward nodes {missing[:8]}"
        elif not self.stage_done:
            yield f"stage {len(self.problem.bwd) + 1 - self.stage} ended without backward node {self.back}"
        expected = len(self.problem.bwd) - self.stage
        if k != expected or k < 1:
            yield f"enters stage {k}, expected {f'stage {expected}' if expected else 'the end'}"
        self.stage += 1
        self.stage_done = self.stage == 0
        self.ran = set()

    def _forward(self, i: int, impl: int, inplace: bool) -> Iterator[str]:
        node = self.problem.fwd[i]
        for j in sorted(set(node.inputs) - self.live):
            yield f"forward node {i} reads forward node {j}, which is not live"
        if i in self.live:
            yield f"forward node {i} runs while its output is live"
        if self.stage and self.stage_done:
            yield f"forward node {i} runs after the backward node of its stage"
        if self.stage and not node.recomputable:
            yield f"forward node {i} runs again, but it must not"
        if self.stage == 0 and i in self.ran:
            yield f"forward node {i} runs twice in the forward pass"
        if node.creator is not None and node.creator not in self.ran:
            yield f"forward node {i} is an intermediate, but its creator {node.creator} did not run in this stage"
        if inplace and node.inplace_of is None:
            yield f"forward node {i} runs in place, but it cannot overwrite anything"
        elif inplace and node.inplace_of is not None:
            self.live.discard(node.inplace_of)
        self.live.add(i)
        self.ran.add(i)
        chosen = node.impls[impl]
        workspace, time = chosen.workspace_bytes, chosen.time_ns
        if self.stage and chosen.recompute_workspace_bytes is not None:
            workspace = chosen.recompute_workspace_bytes
        if self.stage and chosen.recompute_time_ns is not None:
            time = chosen.recompute_time_ns
        self._use(workspace, 0)
        self.time += time - (node.inplace_saves_ns if inplace else 0)

    def _backward(self, k: int, impl: int) -> Iterator[str]:
        node = self.problem.bwd[k]
        if k != self.back or self.stage_done:
            yield f"backward node {k} runs in stage {len(self.problem.bwd) + 1 - self.stage}, expected once in its own"
        for j in sorted(set(node.impls[impl].needs) - self.live):
            yield f"backward node {k} reads forward node {j}, which is not live"
        self.stage_done = True
        chosen = node.impls[impl]
        self._use(chosen.workspace_bytes, 0 if chosen.grad_inplace else node.out_grad_bytes)
        self.time += chosen.time_ns

    def _use(self, workspace: int, made: int) -> None:
        gradients = self.problem.bwd[self.back].live_grad_bytes if 1 <= self.stage <= len(self.problem.bwd) else 0
        outputs = sum(self.problem.fwd[i].out_bytes for i in self.live)
        used = sum(self.problem.base.values()) + outputs + gradients + made + workspace
        if used > self.peak:
            self.peak, self.peak_at = used, self.steps


def _store_all(problem: MemoryProblem) -> tuple[int, int]:
    """Time and peak where every op runs once, by the first of its fastest implementations.

    An op overwrites its input where it can and no later op reads that.
    """
    last: dict[int, int] = {}
    size = len(problem.fwd)
    backward = [min(node.impls, key=lambda impl: impl.time_ns) for node in problem.bwd]
    wanted = {i for impl in backward for i in impl.needs}
    nodes = [i for i, node in enumerate(problem.fwd) if node.kind == "op" or i in wanted]
    for i in nodes:
        last[i] = i
        last.update(dict.fromkeys(problem.fwd[i].inputs, i))
    for k, chosen in enumerate(backward):
        last.update(dict.fromkeys(chosen.needs, size + k))
    time = peak = held = 0
    for i in nodes:
        node = problem.fwd[i]
        fastest = min(node.impls, key=lambda impl: impl.time_ns)
        overwritten = node.inplace_of if node.inplace_of is not None and last[node.inplace_of] == i else None
        reused = 0 if overwritten is None else problem.fwd[overwritten].out_bytes
        peak = max(peak, held + node.out_bytes - reused + fastest.workspace_bytes)
        time += fastest.time_ns - (0 if overwritten is None else node.inplace_saves_ns)
        held += node.out_bytes - sum(problem.fwd[j].out_bytes for j, end in last.items() if end == i)
    for k, (back, chosen) in enumerate(zip(problem.bwd, backward, strict=True)):
        made = 0 if chosen.grad_inplace else back.out_grad_bytes
        peak = max(peak, held + back.live_grad_bytes + made + chosen.workspace_bytes)
        time += chosen.time_ns
        held -= sum(problem.fwd[j].out_bytes for j, end in last.items() if end == size + k)
    return time, peak + sum(problem.base.values())
