"""`treadle lab`: the hosts of a hardware profile on this Linux machine, and commands on each of them."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.completion import profiles
from treadle.cli.json_output import print_json
from treadle.cli.lazy import new_app
from treadle.cli.options import Json, Nodes, positive
from treadle.cli.output import note, print_table, printable
from treadle.planner.documents.scalars import many
from treadle.probe.resolve import load_hardware

if TYPE_CHECKING:
    from treadle.lab.layout import LabLayout


command = new_app(
    help="""Start, use or end the hosts of a hardware profile on this machine.

Every node is a network namespace of Linux; its NICs and the uplinks of racks have the rates of the profile, divided by
--scale.
"""
)

STDOUT = 1
Profile = Annotated[
    str,
    typer.Argument(metavar="PROFILE", autocompletion=profiles, help="A shipped name or a file."),
]
Scale = Annotated[
    float | None,
    positive("Divide all rates by this, so that a few cores can fill them; 1, or as the lab that is up."),
]


@command.command()
def up(*, profile: Profile, nodes: Nodes = None, scale: Scale = None, as_json: Json = False) -> None:
    """Start the hosts of PROFILE, which stay until `treadle lab down`."""
    from treadle.lab import lifecycle

    with lifecycle.up(_layout(profile, nodes, scale or 1.0)) as lab:
        if as_json:
            print_json("lab", _shown(lab.layout))
        else:
            _print(lab.layout)
        sys.stdout.flush()
        _finish()


@command.command()
def run(
    *,
    profile: Profile,
    line: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command and its arguments, after `--`.")],
    once: Annotated[
        bool, typer.Option("--once", help="Once per host, as torchrun wants, not once per device of a host.")
    ] = False,
    nodes: Nodes = None,
    scale: Scale = None,
    as_json: Json = False,
) -> None:
    """Use the hosts of PROFILE: run COMMAND on each.

    Each line that it prints is preceded by the name of its host. The lab is the one that is up, or one that ends with
    the command. RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME are set, and more (docs/lab.md). When
    one fails or Ctrl-C is pressed, all are ended; the exit code is that of the first that failed.
    """
    from treadle.lab import lifecycle, state
    from treadle.lab.run import run

    if scale is None and state.is_up() and (there := state.read()) is not None:
        scale = there.layout.scale
    with lifecycle.the_lab(_layout(profile, nodes, scale or 1.0)) as lab:
        printed: list[dict[str, object]] = []

        def keep(name: str, is_error: bool, line: bytes) -> None:
            printed.append({"process": name, "is_error": is_error, "text": _text(line)})

        try:
            run(lab, line, keep if as_json else _show, once=once, reader=STDOUT)
        except BrokenPipeError:
            raise typer.Exit(128 + signal.SIGPIPE) from None
        if as_json:
            print_json("lab-run", {"profile": lab.layout.profile, "scale": lab.layout.scale, "lines": printed})


@command.command()
def down(*, as_json: Json = False) -> None:
    """End the lab and everything that runs in it.

    What a killed `treadle` left is ended, too.
    """
    from treadle.lab import lifecycle

    lab = lifecycle.down()
    if as_json:
        print_json("lab-down", {"profile": None if lab is None else lab.layout.profile})
        return
    note("there was no lab" if lab is None else f"ended the lab of {lab.layout.profile}")


def _finish() -> None:
    """From here on the result stands, and no signal to end changes it; not where the command runs in a caller's
    process."""
    from treadle.lab.run import FORWARDED

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        for number in FORWARDED:
            signal.signal(number, signal.SIG_IGN)


def _layout(profile: str, nodes: int | None, scale: float) -> LabLayout:
    from treadle.lab.layout import layout

    return layout(load_hardware(profile, nodes), scale)


def _print(layout: LabLayout) -> None:
    from treadle.lab.layout import rate_text

    rows = [
        (host.name, interface.name, interface.address, rate_text(interface.bits_per_second), _slower(interface.slower))
        for host in layout.hosts
        for interface in host.interfaces
    ]
    print_table("", ("host", "interface", "address", "rate", "slower to"), rows)
    if layout.uplinks:
        cables = [
            (
                each.name,
                many(sum(host.bridge == each.bridge for host in layout.hosts), "host"),
                rate_text(each.bits_per_second),
            )
            for each in layout.uplinks
        ]
        print_table("", ("uplink", "hosts at its bridge", "rate"), cables)


def _slower(paths: tuple[tuple[str, int], ...]) -> str | None:
    from treadle.lab.layout import rate_text

    if not paths:
        return None
    return f"{many(len(paths), 'host')}: {rate_text(min(rate for _, rate in paths))}"


def _show(name: str, is_error: bool, line: bytes) -> None:
    print(f"[{name}] {printable(_text(line).expandtabs())}", file=sys.stderr if is_error else sys.stdout, flush=True)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")


def _shown(layout: LabLayout) -> dict[str, object]:
    return {
        "profile": layout.profile,
        "scale": layout.scale,
        "latency_us": layout.latency_us,
        "hosts": [
            {
                "name": host.name,
                "devices": host.devices,
                "interfaces": [
                    {
                        "name": each.name,
                        "address": each.address,
                        "bits_per_second": each.bits_per_second,
                        "slower": [{"address": to, "bits_per_second": rate} for to, rate in each.slower],
                    }
                    for each in host.interfaces
                ],
            }
            for host in layout.hosts
        ],
        "uplinks": [{"name": each.name, "bits_per_second": each.bits_per_second} for each in layout.uplinks],
    }
