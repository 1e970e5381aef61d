"""What stands next to a plan, counted again for the checker: both sides of the choice between racks, and prices."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import isclose

from treadle.planner.passes.server.check_map import Finding
from treadle.planner.passes.server.check_parts import MEBIBYTE, SECOND
from treadle.planner.passes.server.decisions import NetworkCosts, RackSides, ServerDecisions
from treadle.planner.passes.server.price_list import NetworkPrices, ServerPrices
from treadle.planner.passes.server.problem import ServerProblem

ROUNDING = 1e-9


def side_findings(decisions: ServerDecisions) -> Iterator[Finding]:
    """Sides and costs other than those of the problem, or without any reason to be there."""
    problem = decisions.problem
    sides = None if problem.racks == 1 else _sides(problem)
    costs = None if problem.prices is None else _costs(problem.prices)
    for name, right in (("racks", sides), ("costs", costs)):
        seen = getattr(decisions, name)
        if seen is None or right is None:
            if seen is not right:
                yield (
                    f"$.decisions.{name}",
                    "nothing" if seen is None else "figures",
                    "nothing" if right is None else ("figures"),
                )
            continue
        for field in right.__struct_fields__:
            found, wanted = getattr(seen, field), getattr(right, field)
            if not isclose(found, wanted, rel_tol=ROUNDING):
                yield f"$.decisions.{name}.{field}", found, wanted


def _sides(problem: ServerProblem) -> RackSides:
    """Per byte of the model in one direction (section 5.3): shards in all racks, or each rack's sum and then theirs."""
    assert problem.core_rate is not None
    cards = sum(interface.rate for interface in problem.machine.interfaces)
    core, inside = problem.core_rate, problem.workers // problem.racks
    left = Fraction(problem.racks - 1, problem.racks)
    worker = Fraction(1, problem.worker_rate) if problem.worker_rate else Fraction(0)
    flat = inside * left / core
    two_level = max(Fraction(inside, cards), worker) + left / min(cards, core)
    return RackSides(flat=float(flat * MEBIBYTE * SECOND), two_level=float(two_level * MEBIBYTE * SECOND))


def _costs(prices: ServerPrices) -> NetworkCosts:
    """Throughput per 1000 of the currency, of a worker with its share of the network and of a server (section 6.9)."""
    worker = Fraction(prices.worker) + prices.accelerators * Fraction(prices.accelerator)
    baseline = worker + _machine(prices.baseline, 1)
    port = _machine(prices.served, prices.oversubscription)
    card = Fraction(prices.server_card) + port - Fraction(prices.served.card)
    server = Fraction(prices.server) + prices.server_ports * card
    served = worker + port + server / prices.workers_per_server
    left = 1 - Fraction(prices.between_racks_loss)
    return NetworkCosts(
        baseline=float(1000 * Fraction(prices.baseline_throughput) / baseline),
        served=float(1000 * Fraction(prices.served_throughput) * left / served),
    )


def _machine(network: NetworkPrices, oversubscription: int) -> Fraction:
    """A machine's card, cable and port, and its share of the switches above."""
    card, port, cable = map(Fraction, (network.card, network.port, network.cable))
    return card + port + cable + (4 * port + 2 * cable) / oversubscription
