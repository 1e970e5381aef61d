"""Changes the rate of a host's link while a lab runs, in both directions."""

from __future__ import annotations

import os
from multiprocessing import get_context

from treadle.lab.fabric import FIRST_CLASS, FRAME, PAYLOAD, ROOT
from treadle.lab.namespaces import enter
from treadle.lab.state import Lab


def set_rate(lab: Lab, place: int, bits_per_second: int) -> None:
    """Let the link of host `place` carry as many bits per second of TCP payload from now on."""
    process = get_context("fork").Process(target=_set_rate, args=(lab, place, bits_per_second))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"the rate of host {place} could not be changed")


def _set_rate(lab: Lab, place: int, bits_per_second: int) -> None:
    from pyroute2 import IPRoute

    rate = int(bits_per_second / 8 * FRAME / PAYLOAD)
    files = lab.open(place)
    bridges = os.open(f"/proc/{lab.keeper}/ns/net", os.O_RDONLY)
    for file in files[:-3]:  # of the user, where there is one
        enter(file)
    enter(bridges)
    with IPRoute() as fabric:
        (port,) = fabric.link_lookup(ifname=f"n{place}p0")
        fabric.tc("change", "tbf", index=port, handle=ROOT, rate=rate, burst=64 << 10, limit=256 << 10)
    enter(files[-1])
    with IPRoute() as inside:
        (port,) = inside.link_lookup(ifname=lab.layout.hosts[place].interfaces[0].name)
        inside.tc(
            "change-class",
            "htb",
            index=port,
            handle=FIRST_CLASS,
            parent=ROOT,
            rate=rate,
            burst=32 << 10,
            cburst=32 << 10,
        )
