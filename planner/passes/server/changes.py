"""Other machines and other choices than those of a problem: what advice and what-if questions price."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.planner.errors import InputError
from treadle.planner.passes.server.mapping import interfaces_in_turn
from treadle.planner.passes.server.problem import MachineInterface, ServerMachine, ServerProblem


def free_cores(machine: ServerMachine) -> list[int]:
    """Cores of each domain that handle no chunks."""
    found = [*machine.domains]
    for each in machine.interfaces:
        found[each.domain] -= machine.cores_per_interface
    return found


def with_interfaces(machine: ServerMachine, count: int) -> ServerMachine:
    """The same with `count` interfaces: the first ones, from each domain in turn; further ones are like those that are
    there, each in the domain that has fewest. Raises InputError where cores do not suffice."""
    kept = sorted(interfaces_in_turn(machine)[:count])
    changed = replace(machine, interfaces=tuple(machine.interfaces[place] for place in kept))
    while len(changed.interfaces) < count:
        added = _added(changed)
        if added is None:
            raise InputError(
                f"found cores for {len(changed.interfaces)} interfaces, expected {count}", where=machine.name
            )
        changed = added
    return changed


def _added(machine: ServerMachine) -> ServerMachine | None:
    """One more interface, None where no domain has cores for it."""
    rates = [
        sum(each.rate for each in machine.interfaces if each.domain == domain) for domain in range(len(machine.domains))
    ]
    free = [domain for domain, cores in enumerate(free_cores(machine)) if cores >= machine.cores_per_interface]
    if not free:
        return None
    domain = min(free, key=lambda each: (rates[each], each))
    model = next((each for each in machine.interfaces if each.domain == domain), machine.interfaces[0])
    taken = {each.name for each in machine.interfaces}
    name = next(name for place in range(1, len(taken) + 2) if (name := f"new{place}") not in taken)
    card = MachineInterface(name=name, domain=domain, rate=model.rate, slot_rate=model.slot_rate)
    return replace(machine, interfaces=(*machine.interfaces, card))


def card_added(problem: ServerProblem) -> tuple[str, ServerProblem] | None:
    """The problem with one more card, and which domain has it."""
    machine = _added(problem.machine)
    if machine is None:
        return None
    return f"add a card to domain {machine.interfaces[-1].domain}", replace(problem, machine=machine)


def cards_moved(problem: ServerProblem) -> list[tuple[str, ServerProblem]]:
    """One card moved to another domain that has cores for it: the first of each domain with several, to each other
    one."""
    machine, found = problem.machine, []
    free = free_cores(machine)
    for source in range(len(machine.domains)):
        own = [place for place, each in enumerate(machine.interfaces) if each.domain == source]
        for target, cores in enumerate(free):
            if len(own) < 1 or target == source or cores < machine.cores_per_interface:
                continue
            card = machine.interfaces[own[-1]]
            cards = [*machine.interfaces]
            cards[own[-1]] = replace(card, domain=target)
            moved = replace(problem, machine=replace(machine, interfaces=tuple(cards)))
            found.append((f"move {card.name} to domain {target}", moved))
    return found
