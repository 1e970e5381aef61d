"""What another amount of one kind of part would do: `interfaces=4..10`, `chunk=4K..4M`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from typing import NamedTuple

from msgspec.structs import replace

from treadle.planner.documents.nearest import unknown
from treadle.planner.documents.quantities import Spread, parse_bytes, parse_named, parse_number, parse_values
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.server.balance import PartLimit, exchanges_per_s, limits
from treadle.planner.passes.server.changes import with_interfaces
from treadle.planner.passes.server.decided import ServerOptions, best_of, decisions_of
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.problem import MOST_WORKERS, ServerProblem
from treadle.planner.search.clock import Expired, never

Case = tuple[ServerProblem, ServerOptions]
MOST_VALUES = 64
EXAMPLE = "interfaces=4..10"


class WhatIf(NamedTuple):
    """One kind of part in several amounts. `unit` follows them in print."""

    name: str
    unit: str
    values: tuple[int, ...]


class WhatIfAnswer(NamedTuple):
    """What one amount leads to; `exchanges_per_s` includes the time until the first chunk is through."""

    value: int
    decisions: ServerDecisions
    exchanges_per_s: float
    limits: tuple[PartLimit, ...]


def _interfaces(problem: ServerProblem, options: ServerOptions, value: int) -> Case:
    return replace(problem, machine=with_interfaces(problem.machine, value)), options


def _cores(problem: ServerProblem, options: ServerOptions, value: int) -> Case:
    return replace(problem, machine=replace(problem.machine, cores_per_interface=value)), options


def _memory(problem: ServerProblem, options: ServerOptions, value: int) -> Case:
    return replace(problem, machine=replace(problem.machine, memory_rate=value * 10**9)), options


def _bridge(problem: ServerProblem, options: ServerOptions, value: int) -> Case:
    return replace(problem, machine=replace(problem.machine, bridge_rate=value * 10**9)), options


def _workers(problem: ServerProblem, options: ServerOptions, value: int) -> Case:
    servers = value if problem.mode == "cs" else problem.servers
    return replace(problem, workers=value, servers=servers), options


def _chunk(problem: ServerProblem, options: ServerOptions, value: int) -> Case:
    return problem, changed(options, chunk_bytes=value)


CHANGES: dict[str, Callable[[ServerProblem, ServerOptions, int], Case]] = {
    "interfaces": _interfaces,
    "cores": _cores,
    "memory": _memory,
    "bridge": _bridge,
    "workers": _workers,
    "chunk": _chunk,
}
"""What each name changes: interfaces of a server, cores for each of them, GB/s of memory, GB/s of the bridge between
cards and memory, workers, and the bytes of a chunk."""
UNITS = {"memory": "GB/s", "bridge": "GB/s"}


def question_of(text: str, where: str = "--what-if") -> WhatIf:
    """`interfaces=4..10` or `bridge=80,90,100` as values, `chunk=4K..4M` in powers of two, others with :N in N even
    steps. Raises InputError for anything else."""
    ((name, given),) = parse_named([text], EXAMPLE, where=where).items()
    if name not in CHANGES:
        raise InputError(unknown(name, list(CHANGES)), where=where)
    if name == "chunk":
        values = parse_values(given, lambda word: parse_bytes(word, least=64, where=where),
                              Spread.by_factor(2, MOST_VALUES), where=where)  # fmt: skip
    else:
        most = MOST_WORKERS if name == "workers" else 10**6
        values = parse_values(_stepped(given), lambda word: parse_number(word, most=most, where=where),
                              Spread.evenly(11, MOST_VALUES), where=where)  # fmt: skip
    return WhatIf(name, UNITS.get(name, ""), values)


def _stepped(given: str) -> str:
    """`4..10` as every whole number in it, up to what a question may have."""
    low, dots, high = given.partition("..")
    if dots and low.isdecimal() and high.isdecimal() and 2 <= (count := int(high) - int(low) + 1) <= MOST_VALUES:
        return f"{given}:{count}"
    return given


def answers_to(
    question: WhatIf,
    problem: ServerProblem,
    options: ServerOptions,
    expired: Expired = never,
    on_refused: Callable[[str], None] | None = None,
) -> tuple[WhatIfAnswer, ...]:
    """An answer for each value, in their order; those that are left when the time has passed are not answered.

    `on_refused` is called with a line for an amount without a plan; without it that is an error. Raises InputError for
    amounts that do not make a problem, InfeasibleError where a server has too little memory.
    """
    found = list[WhatIfAnswer]()
    for value in question.values:
        if found and expired():
            break
        try:
            found.append(_answer(question, problem, options, value))
        except (InputError, InfeasibleError) as error:
            if on_refused is None:
                raise
            on_refused(f"no plan with {question.name}={value}: {error}")
    return tuple(found)


def _answer(question: WhatIf, problem: ServerProblem, options: ServerOptions, value: int) -> WhatIfAnswer:
    case, chosen = CHANGES[question.name](problem, options, value)
    for path, seen, expected in case.problems():
        raise InputError(f"found {seen}, expected {expected}", path=path)
    decisions = decisions_of(best_of(case, chosen), chosen)
    return WhatIfAnswer(value, decisions, exchanges_per_s(case.workers, decisions.time_ns), limits(decisions))
