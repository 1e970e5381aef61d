"""The links that an exchange of gradients is priced on: what a rank pays inside its node, and a node between nodes."""

from __future__ import annotations

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.hardware import Hardware, Transport
from treadle.planner.documents.transports import MessageCost
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import nic_sets
from treadle.planner.machine.rates import MB, fabric_of


def intra_link(hardware: Hardware) -> GradientLink:
    """The link of one rank to the others of its node. Raises InputError for unequal nodes and links without costs."""
    _require_equal(hardware)
    _, alpha, rate = fabric_of(hardware)
    if not rate:
        raise InputError("found no links between the devices of a node", where=hardware.name, path="$.links")
    cpu, transport = hardware.transports.cpu, hardware.transport or Transport()
    if _on_cpu(hardware):
        return (
            GradientLink(alpha_us=alpha, beta_us_per_MB=MB / rate)
            if cpu is None
            else _sent(cpu.step_us + alpha, MB / rate, cpu.memory)
        )
    if transport.device_gbps is not None:
        rate = min(rate, transport.device_gbps * 1e3 / transport.link_efficiency)
    return GradientLink(alpha_us=alpha, beta_us_per_MB=MB / (rate * transport.link_efficiency))


def inter_link(hardware: Hardware, sums: bool = True) -> GradientLink:
    """The link of a node, all its NICs together; without `sums` the receiver adds nothing to what arrives. Raises
    InputError for unequal nodes, and nodes behind uplinks."""
    _require_equal(hardware)
    network, sets = hardware.network, nic_sets(hardware)
    if network is None:
        raise InputError(f"found none between {hardware.nodes} nodes", where=hardware.name, path="$.network")
    nics = sum(rate for _, rate in sets) or float(hardware.devices_per_node)
    beta, cpu = network.beta_us_per_MB / nics, hardware.transports.cpu
    if not _on_cpu(hardware):
        efficiency = (hardware.transport or Transport()).link_efficiency
        return GradientLink(alpha_us=network.alpha_us, beta_us_per_MB=beta / efficiency)
    if cpu is None:
        return GradientLink(alpha_us=network.alpha_us, beta_us_per_MB=beta)
    return _sent(cpu.step_us + network.alpha_us, beta / cpu.link_efficiency, cpu.between_hosts, sums)


def _require_equal(hardware: Hardware) -> None:
    if not hardware.is_even:
        at = "$.other_nodes" if hardware.other_nodes else "$.network.groups"
        raise InputError("found unequal nodes, expected equal ones", where=hardware.name, path=at)
    if hardware.network is not None and hardware.network.uplinks:
        found = "found uplinks, expected none, which an exchange of gradients has no price for"
        raise InputError(found, where=hardware.name, path="$.network.uplinks")


def _on_cpu(hardware: Hardware) -> bool:
    return all(device.kind == "cpu" for device in hardware.devices)


def _sent(alpha_us: float, beta: float, message: MessageCost, sums: bool = True) -> GradientLink:
    """A link whose ends are processes: each also spends its own time on the message that it sends and on the one that
    it receives."""
    fixed = alpha_us + message.latency_us + 2 * message.message_us
    received = message.sum_us_per_MB if sums else 0.0
    return GradientLink(alpha_us=fixed, beta_us_per_MB=max(beta, message.copy_us_per_MB + received))
