"""Throughput per 1000 of the currency, of a cluster without servers and of one with them.

The network of a machine costs its card, port and cable, and its share of the switches above, which the
oversubscription divides: "Parameter Hub: a Rack-Scale Parameter Server for Distributed Deep Neural Network Training",
the comparison of costs. A card is in there, so it is counted once. The server has cards of its own.
"""

from __future__ import annotations

from fractions import Fraction

from treadle.planner.passes.server.decisions import NetworkCosts
from treadle.planner.passes.server.price_list import NetworkPrices, ServerPrices

SWITCH_PORTS, SWITCH_CABLES = 4, 2
"""Ports and cables of the switches above, for each machine of a network that sends out as much as it takes."""


def network_of(prices: NetworkPrices, oversubscription: int) -> Fraction:
    """The network of one machine."""
    card, port, cable = Fraction(prices.card), Fraction(prices.port), Fraction(prices.cable)
    return card + port + cable + (SWITCH_PORTS * port + SWITCH_CABLES * cable) / oversubscription


def machine_of(prices: ServerPrices) -> Fraction:
    """A worker with its accelerators, without network."""
    return Fraction(prices.worker) + prices.accelerators * Fraction(prices.accelerator)


def baseline_of(prices: ServerPrices) -> Fraction:
    """A worker that shares out gradients with the others, over a network without oversubscription."""
    return machine_of(prices) + network_of(prices.baseline, 1)


def served_of(prices: ServerPrices) -> Fraction:
    """A worker with its share of a server."""
    network = network_of(prices.served, prices.oversubscription)
    port = Fraction(prices.server_card) + network - Fraction(prices.served.card)
    server = Fraction(prices.server) + prices.server_ports * port
    return machine_of(prices) + network + server / prices.workers_per_server


def network_costs(prices: ServerPrices) -> NetworkCosts:
    """Throughput per 1000 of the currency."""
    kept = Fraction(prices.served_throughput) * (1 - Fraction(prices.between_racks_loss))
    return NetworkCosts(
        baseline=float(1000 * Fraction(prices.baseline_throughput) / baseline_of(prices)),
        served=float(1000 * kept / served_of(prices)),
    )
