"""An index plan in words and figures: the leaves, measured and predicted time, memory, what the second best loses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from treadle.cli.tuned_lines import tuned_facts, tuned_line
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.index.choosing import memory_ratio, over_memory
from treadle.planner.passes.index.configurations import GappedArray, IndexConfiguration, name_of_leaves
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.problem import DrawnWorkload, IndexCandidate, IndexProblem

OPERATION_KINDS = (("lookups", "lookup"), ("inserts", "insert"), ("deletes", "delete"), ("scans", "scan"))


class RankedLeaves(NamedTuple):
    """A configuration in the order of the predictions, from 1 on; `over`: it takes more memory than allowed."""

    rank: int
    candidate: IndexCandidate
    over: bool

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def measured_ns(self) -> int | None:
        """All operations of the trace subset."""
        return None if self.candidate.measured is None else self.candidate.measured.time_ns


def ranked(problem: IndexProblem) -> list[RankedLeaves]:
    """All candidates, the best predicted first."""
    order = sorted(problem.candidates, key=lambda each: each.predicted_ns)
    return [RankedLeaves(rank, each, over_memory(problem, each)) for rank, each in enumerate(order, 1)]


def leaves_words(of: IndexConfiguration) -> str:
    """The name of a configuration, and what its numbers mean."""
    if isinstance(of, GappedArray):
        steps, moves = f"{of.most_search:g}", f"{of.most_shifts:g}"
        meaning = f"rebuilt where an insert searches more than {steps} or moves more than {moves} keys on average"
    else:
        most, new = many(of.most_fragments, "fragment"), of.new_fragments
        meaning = f"up to {many(of.fragment_keys, 'key')} in a fragment, {most} in a leaf, {new} in a new one"
    return f"{name_of_leaves(of)}: {meaning}"


def mix_words(problem: IndexProblem) -> str:
    """`200000 inserts and 4 scans`."""
    parts = [many(count, word) for field, word in OPERATION_KINDS if (count := getattr(problem, field))]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)


def workload_words(problem: IndexProblem) -> str:
    """What was loaded, and which operations were replayed."""
    of = problem.workload
    source = f"keys like {of.family}" if isinstance(of, DrawnWorkload) else f"keys of {of.keys.file}"
    part = "" if problem.operations == problem.whole else f", the first of {problem.whole}"
    return f"{source}, {problem.bulk} loaded; {mix_words(problem)}{part}"


def per_operation(problem: IndexProblem, ns: float) -> str:
    """`61.5 ns`."""
    return f"{ns / problem.operations:.4g} ns"


def times(measured_ns: float, expected_ns: float) -> str:
    """How many times of what was expected: `1.03x`."""
    return f"{measured_ns / expected_ns:.2f}x"


def summary(plan: Plan[IndexDecisions]) -> dict[str, Any]:
    """The figures that people ask for first."""
    decisions, proof = plan.decisions, plan.certificate
    problem = decisions.problem
    return {
        "name": problem.name,
        "bulk": problem.bulk,
        "operations": problem.operations,
        "lookups": problem.lookups,
        "inserts": problem.inserts,
        "deletes": problem.deletes,
        "scans": problem.scans,
        "whole": problem.whole,
        "keys_at_end": problem.keys_at_end,
        "leaves": name_of_leaves(decisions.chosen),
        "time_ns": decisions.time_ns,
        "predicted_ns": decisions.candidate.predicted_ns,
        "measured": decisions.bytes is not None,
        "ns_per_operation": decisions.time_ns / problem.operations,
        "bytes": decisions.bytes,
        "memory_ratio": None if decisions.bytes is None else memory_ratio(problem, decisions.bytes),
        "max_memory_ratio": problem.max_memory_ratio,
        "over_memory": decisions.over_memory,
        "second": None if decisions.second is None else name_of_leaves(decisions.second),
        "second_ns": decisions.second_ns,
        "ranked": [
            {"leaves": each.name, "predicted_ns": each.candidate.predicted_ns, "measured_ns": each.measured_ns,
             "bytes": each.candidate.measured and each.candidate.measured.bytes, "over_memory": each.over}
            for each in ranked(problem)
        ],
        "tuned": tuned_facts(plan),
        "loop_ns": problem.loop_ns,
        "model": problem.model,
        "machine": problem.machine,
        "lower_bound_ns": int(proof.lower_bound),
        "gap": proof.gap,
        "optimal": proof.optimal,
        "bound_argument": proof.argument,
        "limit_fired": plan.provenance.limit_fired,
        "interrupted": plan.provenance.interrupted,
    }  # fmt: skip


def lines(plan: Plan[IndexDecisions]) -> Iterator[tuple[str, str]]:
    """What a person reads first, each line with its name."""
    decisions, proof = plan.decisions, plan.certificate
    problem = decisions.problem
    yield "workload", workload_words(problem)
    yield "leaves", leaves_words(decisions.chosen)
    yield "time", time_words(decisions)
    if decisions.bytes is not None:
        yield "memory", memory_words(problem, decisions.bytes, decisions.over_memory)
    if decisions.second is not None and decisions.second_ns is not None:
        yield "second best", second_words(decisions)
    for tuned in plan.provenance.tuned:
        yield "tuned", tuned_line(tuned)
    if not plan.provenance.tuned:
        yield "tuned", f"leaves: {len(problem.candidates)} ranked by {problem.model}, none measured"
    verdict = "proved optimal" if proof.optimal else f"gap {proof.gap:.2%}"
    yield "lower bound", f"{format_time(int(proof.lower_bound))}, {verdict}: {proof.argument}"


def time_words(decisions: IndexDecisions) -> str:
    """The time of the trace subset, measured next to predicted where it was measured."""
    problem, time = decisions.problem, decisions.time_ns
    each = f"{format_time(time)}, {per_operation(problem, time)} an operation"
    if decisions.bytes is None:
        return f"{each}, predicted"
    expected = decisions.candidate.predicted_ns
    return f"{each}, measured; {times(time, expected)} of the {format_time(round(expected))} predicted"


def memory_words(problem: IndexProblem, size: int, over: int) -> str:
    """Bytes of the index, next to its keys and payloads and to what is allowed."""
    text = f"{format_bytes(size)}, {memory_ratio(problem, size):.3g}x of its keys and payloads"
    if problem.max_memory_ratio is None:
        return text
    passed = f"which {over} of the measured ones exceed" if over else "which all measured ones keep to"
    return f"{text}; {problem.max_memory_ratio:g}x allowed, {passed}"


def second_words(decisions: IndexDecisions) -> str:
    """The next configuration, and by how much it is slower."""
    assert decisions.second is not None
    second_ns = decisions.second_ns or decisions.time_ns
    return f"{name_of_leaves(decisions.second)} takes {format_time(second_ns)}, {times(second_ns, decisions.time_ns)}"


MEASURED_HEAD = ("rank", "leaves", "predicted", "measured", "times", "an operation", "memory", "")


def measured_rows(decisions: IndexDecisions) -> list[tuple[str, ...]]:
    """The measured configurations as rows of `MEASURED_HEAD`, the fastest first."""
    problem = decisions.problem
    rows: list[tuple[str, ...]] = []
    for each in sorted(ranked(problem), key=lambda each: each.measured_ns or 0):
        found, time = each.candidate.measured, each.measured_ns
        if found is None or time is None:
            continue
        expected = each.candidate.predicted_ns
        note = "chosen" if each.candidate.configuration == decisions.chosen else "too much memory" if each.over else ""
        rows.append(
            (
                str(each.rank),
                each.name,
                format_time(round(expected)),
                format_time(time),
                times(time, expected),
                per_operation(problem, time),
                f"{memory_ratio(problem, found.bytes):.3g}x",
                note,
            )
        )
    return rows
