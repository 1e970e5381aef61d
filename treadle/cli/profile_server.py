"""`treadle profile` for the parts of parameter servers: measure those of this machine, list and show what ships."""

from __future__ import annotations

import json
from pathlib import Path

from treadle.cli.json_output import print_json
from treadle.cli.output import live_line, note, print_table
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.parsing import parse
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.documents.server_parts import ServerCosts, ServerParts
from treadle.planner.documents.sources import SHIPPED, load_named

FOLDER = SHIPPED[ServerParts]
KIND = "server-parts"
GB = 1e9


def measure_server_parts(output: str | None, as_json: bool) -> None:
    """Measure, write the parts, print them with the rates that they were made from."""
    from treadle.probe.measure_server import measure_server

    with live_line() as show:
        found = measure_server("treadle profile measure --server", on_step=lambda text: show(f"measured {text}"))
    for text in found.notes:
        note(text)
    if output is not None:
        store.save(found.parts, output)
        note(f"wrote {output}")
    if as_json:
        rates = [{"what": each.what, "measured": each.measured, "planned": each.planned} for each in found.rates]
        tall = [each._asdict() for each in found.tall]
        parts = json.loads(store.dumps(found.parts))
        print_json("profile-measure-server", {"parts": parts, "rates": rates, "sums": tall})
        return
    _print_parts(found.parts)
    print_table(
        "rates of memory, GB/s",
        ("what", "measured", "a plan expects"),
        [(each.what, _gb(each.measured), None if each.planned is None else _gb(each.planned)) for each in found.rates],
    )
    add = found.rates[0].measured
    print_table(
        "sums of the gradients of 8 workers on a core, GB/s, and next to a += b",
        ("chunks", "stores", "rate", "of a += b"),
        [
            (
                format_bytes(each.chunk_bytes),
                "past the cache" if each.bypass else "cached",
                _gb(each.rate),
                f"{each.rate / add:.0%}",
            )
            for each in found.tall
        ],
    )


def shipped_server_parts() -> list[tuple[str, ServerParts]]:
    """Name and document of the parts that ship with treadle."""
    return [(name, load_named(ServerParts, name)) for name in resources.names(FOLDER)]


def list_server_parts() -> None:
    """Print the parts that ship with treadle."""
    rows = [
        (name, sum(each.cores for each in parts.domains), len(parts.interfaces), parts.name)
        for name, parts in shipped_server_parts()
    ]
    print_table("parts of parameter servers", ("name", "cores", "interfaces", "machine"), rows)


def server_parts_named(name: str) -> ServerParts | None:
    """The parts in a file, or of a shipped name that `server/` precedes; None for the name or file of something
    else."""
    path, shipped = Path(name), name.removeprefix("server/")
    if path.is_file():
        is_parts = store.kind_of(parse(store.read_text(path), name), name) == KIND
        return load_named(ServerParts, name) if is_parts else None
    return load_named(ServerParts, shipped) if shipped != name and shipped in resources.names(FOLDER) else None


def show_server_parts(parts: ServerParts, as_json: bool) -> None:
    """Print the parts with their sources."""
    if as_json:
        print_json("profile-show-server", {"parts": json.loads(store.dumps(parts))})
        return
    _print_parts(parts)
    print_table("where the numbers come from", ("what", "source"), sorted(parts.sources.items()))


def _print_parts(parts: ServerParts) -> None:
    print_table(
        f"interfaces: {parts.name}",
        ("name", "domain", "Gbit/s", "data", "slot GB/s", "address"),
        [
            (each.name, each.domain, f"{each.link_gbps:g}", f"{each.encoding:.1%}", each.slot_GBps, each.address)
            for each in parts.interfaces
        ],
    )
    rows = [
        ("domains", ", ".join(many(each.cores, "core") for each in parts.domains)),
        ("memory", None if parts.memory_bytes is None else format_bytes(parts.memory_bytes)),
        ("memory GB/s", parts.memory_GBps),
        ("bridge GB/s", parts.bridge_GBps),
        ("between domains GB/s", parts.between_GBps),
    ]
    print_table("", ("part", ""), rows)
    names = ServerCosts.__struct_fields__
    print_table(
        "costs of a core, us per MiB of gradients and per message",
        ("carrier", *(name.removesuffix("_us_per_MB").removesuffix("_us") for name in names)),
        [(carrier, *(f"{getattr(costs, name):g}" for name in names)) for carrier, costs in parts.costs.items()],
    )
    print_table(
        "costs of optimizers, us per MiB of weights",
        ("optimizer", "us"),
        [(name, f"{cost:g}") for name, cost in parts.optimize_us_per_MB.items()],
    )


def _gb(rate: float) -> str:
    return f"{rate / GB:.2f}"
