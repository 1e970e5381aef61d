"""Builds the namespaces, bridges and shaped links of a layout with netlink.

Every direction of every cable has a token bucket where the packets enter it. A host's own interface has classes (HTB)
instead, so that paths to single hosts can be slower. Rates are those of TCP payload; headers come on top.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from treadle.lab.layout import Interface, LabHost, LabLayout
from treadle.lab.namespaces import enter, new_network

FRAME, PAYLOAD = 1514, 1448
"""Bytes of a full Ethernet packet, and of them the payload of TCP."""
BURST_SECONDS, QUEUE_SECONDS = 2.5e-4, 20e-3
LEAST_BURST, LEAST_QUEUE, LARGEST_PACKET = 2 * FRAME, 256 << 10, 65536
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
ARP_IGNORE = Path("/proc/sys/net/ipv4/conf/all/arp_ignore")
"""Those of this thread's network namespace."""
ROOT, FIRST_CLASS = 0x10000, 0x10001


@dataclass(frozen=True)
class Networks:
    """Open files of the network namespaces: of the bridges, and of each host."""

    bridges: int
    hosts: tuple[int, ...]


def build(layout: LabLayout, mark: str) -> Networks:
    """Make everything, up and shaped. Each namespace has an interface `mark`, by which it is recognised.

    The calling thread ends in the namespace of the bridges. Raises OSError, or pyroute2's NetlinkError, where the
    kernel forbids or lacks something.
    """
    bridges = new_network()
    with ExitStack() as stack:
        fabric = stack.enter_context(_netlink())
        _add_mark(fabric, mark)
        for number in range(layout.bridges):
            fabric.link("add", ifname=f"bridge{number}", kind="bridge")
            fabric.link("set", index=_index(fabric, f"bridge{number}"), state="up")
        for number, uplink in enumerate(layout.uplinks):
            below, above = f"down{number}", f"up{number}"
            fabric.link("add", ifname=above, kind="veth", peer={"ifname": below})
            for name, bridge in ((above, uplink.bridge), (below, uplink.above)):
                _attach(fabric, name, bridge)
                _limit(fabric, name, uplink.bits_per_second)
        hosts = []
        for number, host in enumerate(layout.hosts):
            hosts.append(new_network())
            _without_bbr()
            _answer_for_own_addresses()
            with _netlink() as inside:
                _add_mark(inside, mark)
                inside.link("set", index=_index(inside, "lo"), state="up")
                _connect(fabric, inside, number, host, hosts[-1])
        enter(bridges)
        _keep_order(
            *(f"{side}{number}" for number in range(len(layout.uplinks)) for side in ("down", "up")),
            *(f"n{number}p{rail}" for number, host in enumerate(layout.hosts) for rail in range(len(host.interfaces))),
        )
        return Networks(bridges, tuple(hosts))


def _without_bbr() -> None:
    """BBR, where it is the machine's choice, lets shaped links idle between messages; not every kernel has CUBIC in a
    namespace."""
    if CONGESTION.read_text().strip() != "bbr":
        return
    for control in ("cubic", "reno"):
        with suppress(OSError):
            CONGESTION.write_text(control)
            return


def _answer_for_own_addresses() -> None:
    """Each interface answers for its own address only; otherwise packets for one interface of a host arrive at another
    on the same bridge."""
    with suppress(OSError):
        ARP_IGNORE.write_text("1")


def _connect(fabric: Any, inside: Any, number: int, host: LabHost, network: int) -> None:
    for rail, interface in enumerate(host.interfaces):
        port = f"n{number}p{rail}"
        fabric.link("add", ifname=port, kind="veth", peer={"ifname": interface.name, "net_ns_fd": network})
        _attach(fabric, port, host.bridge)
        _limit(fabric, port, interface.bits_per_second)
        index = _index(inside, interface.name)
        _keep_order(interface.name)
        inside.addr("add", index=index, address=interface.address, prefixlen=16)
        inside.link("set", index=index, state="up", gso_max_size=_burst(interface.bits_per_second))
        _classify(inside, index, interface)


def _keep_order(*names: str) -> None:
    """Let interfaces of this thread's namespace pass packets in the order in which they came, many at once.

    Otherwise each core of the machine has a queue of its own, and TCP takes a packet that another core delays for a
    lost one.
    """
    from pyroute2.ethtool.ioctl import IoctlEthtool

    for name in names:
        ethtool = IoctlEthtool(name)
        ethtool.set_offload_flag("generic-receive-offload", 1)
        ethtool.sock.close()


def _attach(fabric: Any, name: str, bridge: int) -> None:
    fabric.link("set", index=_index(fabric, name), master=_index(fabric, f"bridge{bridge}"), state="up")


def _limit(netlink: Any, name: str, bits_per_second: int) -> None:
    queue = max(LEAST_QUEUE, int(bits_per_second / 8 * QUEUE_SECONDS))
    netlink.tc(
        "add",
        "tbf",
        index=_index(netlink, name),
        handle=ROOT,
        rate=_bytes_per_second(bits_per_second),
        burst=int(_burst(bits_per_second) * FRAME / PAYLOAD) + FRAME,  # less would cut every packet into frames
        limit=queue,
    )


def _classify(netlink: Any, index: int, interface: Interface) -> None:
    netlink.tc("add", "htb", index=index, handle=ROOT, default=1)
    rates = dict.fromkeys((interface.bits_per_second, *(rate for _, rate in interface.slower)))
    classes = {rate: FIRST_CLASS + place for place, rate in enumerate(rates)}
    for rate, handle in classes.items():
        burst = _burst(rate)
        netlink.tc(
            "add-class",
            "htb",
            index=index,
            handle=handle,
            parent=ROOT,
            rate=_bytes_per_second(rate),
            burst=burst,
            cburst=burst,
        )
    for address, rate in interface.slower:
        netlink.tc(
            "add-filter",
            "u32",
            index=index,
            parent=ROOT,
            prio=1,
            protocol=0x0800,
            target=classes[rate],
            keys=[f"{int(IPv4Address(address)):#010x}/0xffffffff+16"],  # the destination of an IPv4 packet
        )


def _bytes_per_second(bits_per_second: int) -> int:
    return int(bits_per_second / 8 * FRAME / PAYLOAD)


def _burst(bits_per_second: int) -> int:
    """Bytes that pass at once: what a quarter of a millisecond carries, and no more than a packet may have."""
    return min(LARGEST_PACKET, max(LEAST_BURST, int(bits_per_second / 8 * BURST_SECONDS)))


def _add_mark(netlink: Any, mark: str) -> None:
    netlink.link("add", ifname=mark, kind="bridge")


def _index(netlink: Any, name: str) -> int:
    return int(netlink.link_lookup(ifname=name)[0])


@contextmanager
def _netlink() -> Iterator[Any]:
    """A netlink socket in the namespace of this thread."""
    from pyroute2 import IPRoute

    with IPRoute() as route:
        yield route
