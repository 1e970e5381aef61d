"""`treadle sketch`: propose a sketch for a machine, show what one means, list those that ship."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treadle.cli.completion import sketches as sketch_names
from treadle.cli.json_output import print_json
from treadle.cli.lazy import new_app
from treadle.cli.options import Json, Nodes, document_option, hardware_option, size_option, whole, written
from treadle.cli.output import (
    note,
    print_rich,
    print_table,
    ranges,
    require_same,
)
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.collective import Collective
from treadle.planner.documents.scalars import MEBIBYTE, format_bytes, many
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.sources import load_named
from treadle.probe.resolve import load_hardware, load_sketch

if TYPE_CHECKING:
    from treadle.planner.documents.hardware import Hardware
    from treadle.planner.passes.collective.topology import LogicalTopology

MEANING = "wide: may cross nodes; thin: sends through that device"


command = new_app(
    help="""List, propose or show communication sketches.

Wherever a sketch is asked for: a shipped name, a file, or a sketch file of TACCL as it is.
"""
)


@command.command("list")
def list_(*, as_json: Json = False) -> None:
    """List the sketches that ship with treadle."""
    sketches = [load_named(Sketch, name) for name in resources.names("sketches")]
    if as_json:
        print_json("sketch-list", {"sketches": [_summary(sketch) for sketch in sketches]})
        return
    rows = [["any" if cell is None else cell for cell in _summary(sketch).values()] for sketch in sketches]
    print_table("", ("name", "nodes", "inside a node", "between nodes", "pieces", "size"), rows)


@command.command()
def new(
    *,
    hardware: Annotated[str, hardware_option("A profile: shipped name, file, or `local`.")],
    nodes: Nodes = None,
    collective: Annotated[Collective | None, typer.Option(help="Make it for this one. [default: for any]")] = None,
    size: Annotated[
        int | None,
        size_option(
            "--size", "Make it for this input buffer of one rank, such as 64K. [default: for large ones]", least=1
        ),
    ] = None,
    output: Annotated[str, document_option("sketch", "Write the sketch to this file.")],
    as_json: Json = False,
) -> None:
    """Propose a sketch for a machine.

    The file is YAML; its comments give the reason for each choice.
    """
    from treadle.planner.passes.collective.sketching import proposal, to_yaml

    profile = load_hardware(hardware, nodes)
    made = proposal(profile, collective=collective, size_bytes=size)
    text = to_yaml(made)
    store.loads(text, output, Sketch)
    require_same(Path(output), text, ())
    store.write_text(output, text)
    if as_json:
        print_json("sketch-new", {"output": output, "reasons": made.reasons, "sketch": made.sketch.name})
        return
    for field, reason in made.reasons.items():
        typer.echo(f"{field}: {reason}" if field else reason)
    typer.echo(f"wrote {output}")


@command.command()
def show(
    *,
    name: Annotated[
        str, typer.Argument(metavar="NAME", autocompletion=sketch_names, help="A shipped name, or a file.")
    ],
    hardware: Annotated[str, hardware_option("The machine it is for: shipped name, file, or `local`.")],
    nodes: Annotated[int | None, whole("Number of nodes. [default: the sketch's or the profile's]", least=1)] = None,
    collective: Annotated[
        Literal["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce"],
        typer.Option(help="Count the choices of this collective."),
    ] = "allgather",
    size: Annotated[
        int | None, size_option("--size", "Input buffer of one rank. [default: the sketch's, else 1MiB]")
    ] = None,
    output: Annotated[
        str | None, written("-o", "--output", kind="picture", endings=(".svg",), help="Draw it as SVG to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a sketch means on a machine."""
    from treadle.planner.machine.nodes import one_node
    from treadle.planner.passes.collective.problem import MAX_CHOICES, build_problem

    sketch = load_sketch(name)
    profile = one_node(load_hardware(hardware, nodes if nodes is not None else sketch.num_nodes))
    sizes = sketch.sizes if size is None else (size,)
    problem = build_problem(collective, profile, sketch, (sizes or (MEBIBYTE,))[0], restricted=False)
    topology = problem.topology
    if output is not None:
        from treadle.probe.draw import topology_svg

        store.write_text(output, topology_svg(profile, _arrows(profile, sketch, topology), MEANING))
        note(f"wrote {output}")
    facts = _facts(profile, sketch, problem.topology)
    facts["chunks"] = {
        "collective": collective,
        "input": [format_bytes(one) for one in sizes or (MEBIBYTE,)],
        "pieces": sketch.hyperparameters.input_chunkup,
        "chunk": format_bytes(problem.chunk_bytes),
    }
    if len(problem.chunks) * len(topology.routing.links) > MAX_CHOICES:
        facts["symmetry"]["choices"] = "too large to count; methods for many ranks use only the links"
    else:
        facts["symmetry"]["choices"] = _choices(collective, profile, sketch, problem.input_bytes)
    if as_json:
        print_json("sketch-show", facts)
    else:
        _print_facts(sketch, profile, facts)


def _summary(sketch: Sketch) -> dict[str, object]:
    intra, inter = sketch.intranode_sketch, sketch.internode_sketch
    across: object = "all to all" if inter is None else inter.internode_conn
    if isinstance(across, dict):
        pairs = sum(len(to) for to in across.values())
        across = many(pairs, "connection")
    size = sketch.hyperparameters.input_size
    return {
        "name": sketch.name,
        "nodes": sketch.num_nodes,
        "inside a node": many(len(intra.switches), "switch group")
        if intra.strategy == "switch"
        else "every link"
        if intra.direct_links is None
        else many(len(intra.direct_links), "link"),
        "between nodes": across,
        "pieces": sketch.hyperparameters.input_chunkup,
        "size": ", ".join(size) if isinstance(size, tuple) else size,
    }


def _facts(hardware: Hardware, sketch: Sketch, topology: LogicalTopology) -> dict[str, Any]:
    from treadle.planner.passes.collective.symmetry import rank_maps
    from treadle.planner.passes.collective.topology import relays_of

    size, ranks = topology.per_node, topology.ranks
    inside: Counter[str] = Counter()
    across: Counter[str] = Counter()
    for (src, dst), link in topology.routing.links.items():
        (inside if src // size == dst // size else across)[link.kind] += 1
    pairs = {(link.src, link.dst) for link in hardware.links}
    pairs |= {(a, b) for switch in hardware.switches for a in switch.members for b in switch.members if a != b}
    leave = {device: relays_of(sketch, device, size) for device in range(size)} if hardware.nodes > 1 else {}
    by_relay: dict[str, list[int]] = {}
    for device, relays in leave.items():
        by_relay.setdefault("any sender" if relays is None else ranges(relays), []).append(device)
    inter = sketch.internode_sketch
    parent = list(range(ranks))

    def find(rank: int) -> int:
        while parent[rank] != rank:
            rank = parent[rank]
        return rank

    for one in rank_maps(sketch, ranks, size):
        for rank, image in enumerate(one.perm):
            a, b = find(rank), find(image)
            parent[max(a, b)] = min(a, b)
    orbits = Counter(find(rank) for rank in range(ranks))
    return {
        "links": {
            "inside": {"kept": sum(inside.values()), "of": len(pairs) * hardware.nodes, "kinds": dict(inside)},
            "across": {"kept": sum(across.values()), "of": ranks * (ranks - size), "kinds": dict(across)},
        },
        "ports": [{"name": port.name, "links": len(port.links)} for port in topology.plan.ports],
        "switches": {
            policy: sum(h.policy == policy for h in topology.hyperedges) for policy in ("uc-min", "uc-max", "free")
        },
        "senders": {} if inter is None else {str(s): list(to) for s, to in inter.connections(size).items()},
        "shares": {} if inter is None else dict(inter.beta_split),
        "relays": by_relay,
        "symmetry": {"maps": len(sketch.symmetry_offsets) + len(sketch.symmetries), "classes": len(orbits)},
        "batches": {
            "kinds": sorted({link.kind for link in topology.plan.links.values()} & set(sketch.contiguity.links)),
            "max_run": sketch.contiguity.max_run,
        },
    }


def _choices(collective: Any, hardware: Hardware, sketch: Sketch, size_bytes: int) -> dict[str, int]:
    from treadle.planner.passes.collective.problem import build_problem
    from treadle.planner.passes.collective.routing import tied_transfers

    problem = build_problem(collective, hardware, sketch, size_bytes)
    return {"transfers": sum(map(len, problem.allowed)), "tied": len(set(tied_transfers(problem).values()))}


def _print_facts(sketch: Sketch, hardware: Hardware, facts: dict[str, Any]) -> None:
    from rich.markup import escape

    size, nodes = hardware.devices_per_node, hardware.nodes
    machine = f"{many(nodes, 'node')} of {many(size, 'device')} ({escape(hardware.name)})"
    print_rich(f"[bold]{escape(sketch.name)}[/] on {machine}")
    chunks = facts["chunks"]
    pieces = many(chunks["pieces"], "piece")
    print_table(
        "chunks",
        ("collective", "input of a rank", "in", "chunk"),
        [(chunks["collective"], ", ".join(chunks["input"]), pieces, chunks["chunk"])],
    )
    print_table(
        "links (each direction counts)",
        ("where", "kept", "of all", "kinds"),
        [
            (where, one["kept"], one["of"], ", ".join(f"{count} {kind}" for kind, count in one["kinds"].items()))
            for where, one in (("inside nodes", facts["links"]["inside"]), ("between nodes", facts["links"]["across"]))
            if one["of"]
        ],
    )
    kinds: Counter[tuple[str, int]] = Counter((_kind_of_port(p["name"]), p["links"]) for p in facts["ports"])
    print_table(
        "ports: their links take turns",
        ("of", "ports", "links each"),
        [(kind, count, links) for (kind, links), count in kinds.items()],
    )
    used = [(policy, count) for policy, count in facts["switches"].items() if count]
    print_table("switches", ("connections", "switches"), used)
    print_table(
        "between nodes",
        ("device", "sends to", "gets of its NIC"),
        [
            (s, ranges(to), f"1/{facts['shares'][s]}" if facts["shares"].get(s, 1) > 1 else "all")
            for s, to in facts["senders"].items()
        ]
        if nodes > 1
        else [],
    )
    print_table(
        "relays", ("chunks of devices", "leave through"), [(ranges(d), relay) for relay, d in facts["relays"].items()]
    )
    symmetry, choices = facts["symmetry"], facts["symmetry"]["choices"]
    search = (
        choices if isinstance(choices, str) else f"{choices['transfers']:,} transfers, {choices['tied']:,} to decide"
    )
    print_table("symmetry", ("maps", "classes of ranks", "search"), [(symmetry["maps"], symmetry["classes"], search)])
    batches = facts["batches"]
    if batches["kinds"]:
        typer.echo(f"\nUp to {batches['max_run']} chunks may share a message over {', '.join(batches['kinds'])}.")


def _kind_of_port(name: str) -> str:
    """`switch0 rank 3 out` -> `rank on a switch, out`."""
    direction = name.rsplit(" ", 1)[-1]
    what = (
        "NIC"
        if name.startswith("nic ")
        else "rank on the network"
        if name.startswith("network ")
        else "uplink"
        if name.startswith("uplink ")
        else "rank on a switch"
    )
    return f"{what}, {direction}"


def _arrows(hardware: Hardware, sketch: Sketch, topology: LogicalTopology) -> dict[tuple[int, int], float]:
    """Links between nodes, a device and its relay, and the links of a node where the sketch leaves some out."""
    from treadle.planner.passes.collective.topology import relays_of

    size = topology.per_node
    arrows = {e: 1.0 for e in topology.routing.links if e[0] // size != e[1] // size}
    if sketch.intranode_sketch.direct_links is not None:
        arrows |= {e: 1.0 for e in topology.routing.links if e[0] // size == e[1] // size}
    if hardware.nodes > 1:
        for rank in range(topology.ranks):
            for relay in relays_of(sketch, rank, size) or ():
                if relay != rank:
                    arrows.setdefault((rank, relay), 0.2)
    return arrows
