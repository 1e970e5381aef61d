"""The machines that published synthesisers were measured on, in their authors' numbers.

TE-CCL counts bytes in powers of ten, and latencies of a link's messages overlap (`pipelined`).
NDv2: NVLinks of 25 GB/s, double ones of 50, one NIC of 12.5 GB/s for each node. DGX-2: 125 GB/s into the NVSwitch from
each GPU, eight NICs of 12.5 GB/s. Latencies in us: NVLink 0.7, NVSwitch 0.7, InfiniBand 1.3 (NDv2) and 2.6 (DGX-2).
"""

from __future__ import annotations

from msgspec.structs import replace

from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Device, Hardware, Link, Network, Nic, Switch, scaled
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.sketch import Contiguity, InternodeSketch, IntranodeSketch, Sketch
from treadle.probe.resolve import load_hardware


def us_per_mebibyte(bytes_per_second: float) -> float:
    return MEBIBYTE / bytes_per_second * 1e6


def ndv2(nodes: int) -> Hardware:
    """Azure NDv2 with TE-CCL's speeds."""
    shipped = load_hardware("ndv2")
    links = tuple(replace(link, alpha_us=0.7, beta_us_per_MB=us_per_mebibyte(25e9)) for link in shipped.links)
    network = Network(kind="ib", alpha_us=1.3, beta_us_per_MB=us_per_mebibyte(12.5e9))
    return scaled(_with_speeds(shipped, links=links, network=network), nodes)


def dgx2(nodes: int) -> Hardware:
    """NVIDIA DGX-2 with TE-CCL's speeds."""
    shipped = load_hardware("dgx2")
    switches = tuple(
        replace(switch, alpha_us=0.7, beta_us_per_MB=us_per_mebibyte(125e9)) for switch in shipped.switches
    )
    network = Network(kind="ib", alpha_us=2.6, beta_us_per_MB=us_per_mebibyte(12.5e9))
    return scaled(_with_speeds(shipped, switches=switches, network=network), nodes)


def _with_speeds(shipped: Hardware, **speeds: object) -> Hardware:
    return replace(shipped, name=f"{shipped.name} (TE-CCL speeds)", latency="pipelined", sources={}, **speeds)


def rails(nodes: int) -> Hardware:
    """Nodes of eight GPUs of 300 GB/s each on an NVSwitch, and one NIC of 25 GB/s for each GPU: A100 machines."""
    return Hardware(
        version=1,
        name="rails",
        nodes=nodes,
        devices=(Device(model="A100", kind="gpu", count=8),),
        switches=(
            Switch(
                name="nvswitch",
                kind="nvswitch",
                members=tuple(range(8)),
                alpha_us=0.7,
                beta_us_per_MB=us_per_mebibyte(300e9),
            ),
        ),
        nics=tuple(Nic(name=f"nic{device}", devices=(device,)) for device in range(8)),
        network=Network(kind="ib", alpha_us=2.6, beta_us_per_MB=us_per_mebibyte(25e9)),
    )


def torus(side: int) -> Hardware:
    """A square torus of single devices with links of 50 GiB/s and 0.5 us, TACOS's example."""
    links = [
        Link(src=row * side + column, dst=other, kind="link", alpha_us=0.5, beta_us_per_MB=us_per_mebibyte(50 * 2**30))
        for row in range(side)
        for column in range(side)
        for other in (
            row * side + (column + 1) % side,
            row * side + (column - 1) % side,
            (row + 1) % side * side + column,
            (row - 1) % side * side + column,
        )
    ]
    return Hardware(
        version=1,
        name=f"torus {side}x{side}",
        nodes=1,
        devices=(Device(model="npu", kind="gpu", count=side * side),),
        links=tuple(sorted(links, key=lambda link: (link.src, link.dst))),
    )


EVERY_LINK = store.load(resources.locate("sketches", "mesh"), Sketch)

RAILS = Sketch(
    version=1,
    name="rails",
    intranode_sketch=IntranodeSketch(strategy="direct"),
    internode_sketch=InternodeSketch(strategy="relay", internode_conn={str(device): (device,) for device in range(8)}),
    ib_ports="per_nic",
    contiguity=Contiguity(links=("ib",), max_run=8),
)

ODD_TO_EVEN = Sketch(
    version=1,
    name="odd to even",
    intranode_sketch=IntranodeSketch(strategy="direct"),
    internode_sketch=InternodeSketch(
        strategy="relay", internode_conn={str(device): (device - 1,) for device in range(1, 16, 2)}
    ),
    ib_ports="per_nic",
)
"""The links that TACCL and TE-CCL use on a DGX-2: odd GPUs send to the other node, their even neighbours receive."""
