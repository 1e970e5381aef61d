"""`treadle profile`: list, show, measure and import hardware profiles."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from treadle.cli.completion import profiles as profile_names
from treadle.cli.json_output import print_json
from treadle.cli.lazy import new_app
from treadle.cli.nccl_library import library_facts, show_library
from treadle.cli.options import Json, Nodes, document_option, hardware_option, positive, size_option, whole, written
from treadle.cli.output import (
    live_line,
    note,
    print_rich,
    print_table,
    ranges,
)
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.quantities import parse_bytes, parse_list
from treadle.planner.documents.scalars import MEBIBYTE, format_bytes, many
from treadle.planner.errors import InputError
from treadle.probe.resolve import LOCAL, load_hardware

if TYPE_CHECKING:
    from treadle.probe.fit import LinkFit
    from treadle.probe.nccl_fit import CollectiveFit
    from treadle.probe.nccl_library_fit import LibraryFit


command = new_app(
    help="""List, show, measure, import or summarize profiles of hardware and gradients.

Wherever a profile is asked for: a shipped name, a file, or `local` for this machine.
"""
)


@command.command("list")
def list_(*, as_json: Json = False) -> None:
    """List profiles and costs of kernels that ship with treadle."""
    from treadle.cli.profile_compression import list_costs, shipped_costs
    from treadle.cli.profile_sparse import list_sparse_costs, shipped_sparse_costs

    profiles = [load_hardware(name) for name in resources.names("profiles")]
    if as_json:
        costs = {
            "compression": [name for name, _ in shipped_costs()],
            "sparse": [name for name, _ in shipped_sparse_costs()],
        }
        print_json("profile-list", {"profiles": [_summary(profile) for profile in profiles], **costs})
        return
    rows = [
        (each.name, each.all_nodes, _devices(each), _fabric(each), each.network.kind if each.network else "none")
        for each in profiles
    ]
    columns = ("name", "nodes", "devices per node", "links in a node", "network")
    print_table("", columns, [*rows, (LOCAL, 1, "this machine", None, None)])
    list_costs()
    list_sparse_costs()


@command.command()
def show(
    *,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", autocompletion=profile_names, help="A shipped name, a file, or `local`."),
    ],
    nodes: Nodes = None,
    svg: Annotated[
        str | None,
        written("--svg", kind="picture", endings=(".svg",), help="Write a picture of the profile to this file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a profile, or costs of kernels.

    NAME is a shipped name, a file, or `local`. Costs are those of compressing gradients, or of sparse gradients such
    as sparse/cpu-epyc.
    """
    from treadle.cli.profile_compression import costs_named, show_costs
    from treadle.cli.profile_sparse import show_sparse_costs, sparse_costs_named

    sparse = sparse_costs_named(name)
    if sparse is not None:
        if nodes is not None or svg is not None:
            given = "--nodes" if svg is None else "--svg"
            raise InputError("found costs of sparse gradients, expected a hardware profile with it", where=given)
        show_sparse_costs(sparse, as_json)
        return

    costs = None if name in resources.names("profiles") else costs_named(name)
    if costs is not None:
        if nodes is not None or svg is not None:
            given = "--nodes" if svg is None else "--svg"
            raise InputError("found costs of gradient compression, expected a hardware profile with it", where=given)
        show_costs(costs, as_json)
        return
    hardware = load_hardware(name, nodes)
    if svg is not None:
        from treadle.probe.draw import topology_svg

        store.write_text(svg, topology_svg(hardware))
        note(f"wrote {svg}")
    if as_json:
        print_json("profile-show", {"hardware": json.loads(store.dumps(hardware))})
    elif svg is None:
        _show(hardware)


def _measured_kind(options: Mapping[str, Any]) -> str:
    """The kind of document that `measure` writes with these options."""
    if options["sparse"]:
        return "sparse-costs"
    return "compression-costs" if options["compression"] else "hardware"


@command.command()
def measure(
    *,
    world: Annotated[int | None, typer.Option(help="Number of processes. [default: one per GPU, or 4]")] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="Chunk sizes to send, such as 4K,64K,1M [default: 4K,64K,1M]; with --compression: bytes of gradients. "
            "[default: 1K to 64M]",
        ),
    ] = None,
    backend: Annotated[
        Literal["cpu", "nccl"] | None,
        typer.Option(help="Measure what this runtime costs a collective program, for the times that plans predict."),
    ] = None,
    hardware: Annotated[
        str | None, hardware_option("With --backend: the profile that gets the costs. [default: this machine]")
    ] = None,
    compression: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ALGO[:RATIO]",
            help="Measure what this compressor of gradients costs, such as dgc:0.01. Repeatable.",
        ),
    ] = None,
    sparse: Annotated[bool, typer.Option("--sparse", help="Measure what sparse gradients cost on the CPUs.")] = False,
    together: Annotated[
        int | None,
        whole("With --compression: processes that measure at once and share the cores. [default: 1]", least=1, most=64),
    ] = None,
    output: Annotated[str | None, document_option(_measured_kind, "Write what was measured to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Measure this machine.

    The profile holds rates of links between processes, memory, matrix products and host copies, and the overhead of an
    operator. Started as one rank of several, by torchrun or `treadle lab run`, it measures the network between their
    hosts. With --backend it holds the costs of a runtime on the hosts of --hardware: of the CPU runtime, or
    of grouped messages of NCCL between GPUs. With --compression it is a document of another kind: what encoding,
    decoding and copying gradients costs, on the GPU as well as on the host. Started as one rank of several it holds the
    collectives of torch.distributed between them too. With --sparse it is what the kernels of sparse gradients cost.
    """
    if sparse:
        others = (world, sizes, backend, hardware, compression, together)
        names = ("--world", "--sizes", "--backend", "--hardware", "--compression", "--together")
        for option, value in zip(names, others, strict=True):
            if value is not None:
                raise InputError("found --sparse too, expected one of the two", where=option)
        from treadle.cli.profile_sparse import measure_sparse_costs

        measure_sparse_costs(output, as_json)
        return
    if compression:
        for option, value in (("--world", world), ("--backend", backend), ("--hardware", hardware)):
            if value is not None:
                raise InputError("found --compression too, expected one of the two", where=option)
        from treadle.cli.profile_compression import measure_compression_costs

        measure_compression_costs(compression, sizes, together, output, as_json)
        return
    if together is not None:
        raise InputError("found no --compression, expected one with it", where="--together")
    if backend is not None:
        if sizes is not None:
            raise InputError("found --backend too, expected one of the two", where="--sizes")
        from treadle.cli.profile_backend import measure_backend

        measure_backend(backend, world, hardware, output, as_json)
        return
    if hardware is not None:
        raise InputError("found no --backend, expected one with it", where="--hardware")
    from treadle.runtime.joined import joined_rank

    if joined_rank() is not None:
        if world is not None or sizes is not None:
            raise InputError("found ranks of several hosts, expected neither this nor --sizes", where="--world")
        _measure_hosts(output, as_json)
        return
    from treadle.probe.measure import SIZES
    from treadle.probe.measure import measure as run

    words = ["treadle profile measure"]
    if world is not None:
        words.append(f"--world {world}")
    chunk_sizes: tuple[int, ...] = SIZES
    if sizes is not None:
        chunk_sizes = parse_list(sizes, partial(parse_bytes, where="--sizes"))
        words.append(f"--sizes {sizes}")
    with live_line() as show:
        result = run(
            world,
            chunk_sizes,
            command=" ".join(words),
            on_step=lambda done, of: show(f"measuring {done}/{of} steps"),
        )
    if output is not None:
        store.save(result.hardware, output)
        note(f"wrote {output}")
    if as_json:
        fits = {name: msgspec.to_builtins(fit) for name, fit in result.fits.items()}
        print_json("profile-measure", {"hardware": json.loads(store.dumps(result.hardware)), "fits": fits})
        return
    _show(result.hardware)
    _show_fits(result.fits)


def _measure_hosts(output: str | None, as_json: bool) -> None:
    """Measure with all other ranks; rank 0 writes and prints."""
    from treadle.probe.hosts import measure_hosts

    with live_line() as show:
        found = measure_hosts(
            command="treadle profile measure", on_step=lambda done: show(f"measuring the network, experiment {done}")
        )
    if found is None:
        return
    if output is not None:
        store.save(found, output)
        note(f"wrote {output}")
    if as_json:
        print_json("profile-measure", {"hardware": json.loads(store.dumps(found)), "fits": {}})
        return
    _show(found)


@command.command("import")
def import_(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A topology of another tool.")],
    output: Annotated[str, document_option("hardware", "Write the profile to this file.")],
    name: Annotated[str | None, typer.Option(help="Name of the profile. [default: the file's name]")] = None,
    costs_from: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=profile_names,
            help="Copy alpha and beta of equal link kinds from this profile; for topograph: the node and its network; "
            "for nccl-tests: the topology to fit.",
        ),
    ] = None,
    message_size: Annotated[
        int | None,
        size_option(
            "--message-size", "For a TACCL topology: the message its costs are for. [default: from its name]", least=1
        ),
    ] = None,
    cost_scale: Annotated[
        float | None,
        positive("For a TACCL topology: its costs are microseconds times this. [default: 1]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Import a topology of another tool as a profile.

    FILE is NCCL or RCCL topology XML or their log (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,GRAPH), lstopo XML, the
    text of `nvidia-smi topo -m`, TACCL topology JSON, or topograph YAML. The output of nccl-tests (its tables, or the
    file of -J) fits the links of that log, or of the profile of --costs-from.
    """
    from treadle.probe.importer import costs_for, import_profile, import_times, with_costs

    costs = None if costs_from is None else load_hardware(costs_from)
    times = None if message_size or cost_scale else import_times(Path(file), name, costs)
    if times is not None:
        fit, library = times
        store.save(fit.hardware if library is None else library.hardware, output)
        _show_collective_fit(fit, library, output, as_json)
        return
    hardware = import_profile(Path(file), name, message_size, cost_scale, costs)
    if costs is not None:
        hardware = with_costs(hardware, costs)
    store.save(hardware, output)
    if as_json:
        print_json("profile-import", _summary(hardware))
        return
    nodes = f"{many(hardware.nodes, 'node')} of " if hardware.nodes > 1 else ""
    note(f"wrote {output}: {nodes}{_devices(hardware)}, {_fabric(hardware)}, {many(len(hardware.nics), 'NIC')}")
    for field, source in hardware.sources.items():
        if "assumed" in source:
            note(f"{field}: {source}")
    if any(link.alpha_us is None for link in hardware.links) or any(s.alpha_us is None for s in hardware.switches):
        names = ", ".join(costs_for(hardware)) or "a profile that has costs of all their kinds"
        note(
            "the file gives no latencies, so nothing can be planned on its links yet: "
            f"measure on that machine, or import again with --costs-from {names}"
        )


@command.command()
def sparsity(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Index sets (npz or a document), or a sparsity.")],
    output: Annotated[str | None, document_option("sparsity", "Write the document of sparsity to this file.")] = None,
    picture: Annotated[
        str | None,
        written("--picture", kind="page", endings=(".svg", ".html", ".htm"), help="Draw it: one SVG, or a page."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Summarize how sparse gradients are: densities of sums, overlap, and how evenly non-zero units lie.

    FILE is what `treadle.sparse.record` in a training script saved: index sets, or the document made from them.
    """
    from treadle.cli.profile_sparsity import show_sparsity

    show_sparsity(file, output, picture, as_json)


def _show_collective_fit(fit: CollectiveFit, library: LibraryFit | None, output: str, as_json: bool) -> None:
    if as_json:
        found = {"part": fit.part, "alpha_us": fit.alpha_us, "beta_us_per_MB": fit.beta_us_per_MB}
        found["sizes"] = [
            {
                "collective": row.collective,
                "size_bytes": row.size,
                "measured_us": row.measured,
                "fitted_us": row.fitted,
                "residual": row.residual,
            }
            for row in fit.rows
        ]
        nccl = {} if library is None else {"nccl_library": library_facts(library)}
        print_json("profile-import", {**_summary(fit.hardware), "fit": found, **nccl})
        return
    for collective in dict.fromkeys(row.collective for row in fit.rows):
        rows = [row for row in fit.rows if row.collective == collective]
        print_table(
            collective,
            ("size", "measured", "fitted", "residual"),
            [
                (format_bytes(r.size), f"{r.measured:,.2f} us", f"{r.fitted:,.2f} us", f"{100 * r.residual:+.1f}%")
                for r in rows
            ],
        )
    largest = fit.largest
    note(f"largest residual {100 * largest.residual:+.1f}% at {format_bytes(largest.size)} of {largest.collective}")
    if library is not None:
        show_library(library)
    for test in fit.others:
        note(f"left out {test}: the fit knows allreduce, allgather and reducescatter")
    cost = f"alpha {fit.alpha_us:.4g} us, beta {fit.beta_us_per_MB:.4g} us/MiB"
    note(f"wrote {output}: {cost} of each link ({fit.part}), fitted to {many(len(fit.rows), 'size')}")


def _summary(hardware: Hardware) -> dict[str, object]:
    return {
        "name": hardware.name,
        "nodes": hardware.all_nodes,
        "devices_per_node": hardware.devices_per_node,
        "ranks": hardware.ranks,
        "devices": [device.model for device in hardware.devices],
        "links": sum(link.count for link in hardware.links),
        "switches": len(hardware.switches),
        "nics": len(hardware.nics),
        "pcie_switches": len(hardware.pcie),
        "network": hardware.network.kind if hardware.network else None,
    }


def _other_kinds(hardware: Hardware) -> list[tuple[int, Hardware]]:
    """How many there are of each kind of `other_nodes`, and such a node."""
    start, found = hardware.nodes, []
    for other in hardware.other_nodes:
        found.append((other.nodes, hardware.every_node[start]))
        start += other.nodes
    return found


def _devices(hardware: Hardware) -> str:
    return ", ".join(f"{device.count} x {device.model}" for device in hardware.devices)


def _fabric(hardware: Hardware) -> str:
    """`48 nvlink` counts both directions of each link."""
    kinds = Counter[str]()
    for link in hardware.links:
        kinds[link.kind] += link.count
    parts = [f"{count} {kind}" for kind, count in sorted(kinds.items())]
    parts += [f"{switch.kind} of {len(switch.members)}" for switch in hardware.switches]
    return ", ".join(parts) or "none"


def _show(hardware: Hardware) -> None:
    from rich.markup import escape

    kinds = [(hardware.nodes, hardware), *_other_kinds(hardware)]
    sizes = ", ".join(f"{many(count, 'node')} of {many(kind.devices_per_node, 'device')}" for count, kind in kinds)
    print_rich(f"[bold]{escape(hardware.name)}[/]: {sizes}")
    print_table(
        "devices of a node",
        ("local", "model", "kind", "memory", "memory bandwidth", "peak TFLOP/s", "operator call"),
        _device_rows(hardware),
    )
    host = hardware.host
    print_table(
        "host of a node",
        ("CPU", "cores", "NUMA nodes", "memory"),
        [(host.cpu_model, host.cpu_cores, host.numa_nodes, host.memory_bytes and format_bytes(host.memory_bytes))],
    )
    alike = Counter((link.kind, link.count, link.alpha_us, link.beta_us_per_MB) for link in hardware.links)
    print_table(
        "links in a node (each direction counts)",
        ("kind", "pairs", "links per pair", "alpha", "beta per pair", "rate per pair"),
        [(kind, pairs, count, *_cost(alpha, beta, count)) for (kind, count, alpha, beta), pairs in alike.items()],
    )
    print_table(
        "switches in a node",
        ("name", "kind", "devices", "links per device", "alpha", "beta per device", "rate per device", "in network"),
        [
            (
                s.name,
                s.kind,
                ranges(s.members),
                s.count,
                *_cost(s.alpha_us, s.beta_us_per_MB, s.count),
                ", ".join(s.in_network) or None,
            )
            for s in hardware.switches
        ],
    )
    if hardware.network is not None:
        net = hardware.network
        print_table(
            "between nodes",
            ("kind", "alpha", "beta per NIC", "rate per NIC"),
            [(net.kind, *_cost(net.alpha_us, net.beta_us_per_MB, 1))],
        )
        print_table(
            "groups of nodes: the network between two of one, where it has other costs",
            ("name", "nodes", "alpha", "beta per NIC", "rate per NIC"),
            [
                (group.name, ranges(group.nodes), *_cost(group.alpha_us, group.beta_us_per_MB, 1))
                for group in net.groups
            ],
        )
        print_table(
            "uplinks: what nodes share to all others, in each direction",
            ("name", "nodes", "beta", "rate"),
            [
                (
                    uplink.name,
                    ranges(uplink.nodes),
                    f"{uplink.beta_us_per_MB:.4g} us/MiB",
                    f"{MEBIBYTE / uplink.beta_us_per_MB / 1e3:.4g} GB/s",
                )
                for uplink in net.uplinks
            ],
        )
    print_table(
        "other nodes, whose ranks follow",
        ("nodes", "devices", "links and switches", "NICs"),
        [(count, _devices(kind), _fabric(kind), len(kind.nics)) for count, kind in _other_kinds(hardware)],
    )
    print_table(
        "NICs of a node",
        ("name", "devices", "PCIe switch", "GPUDirect", "Gb/s"),
        [
            (
                nic.name,
                ranges(nic.devices),
                nic.pcie,
                None if nic.gpudirect is None else "yes" if nic.gpudirect else "no",
                _number(nic.speed_gbps),
            )
            for nic in hardware.nics
        ],
    )
    print_table(
        "PCIe switches of a node",
        ("name", "under", "devices"),
        [
            (pcie.name, pcie.parent or ("CPU" if pcie.numa is None else f"CPU {pcie.numa}"), ranges(pcie.devices))
            for pcie in hardware.pcie
        ],
    )
    print_table(
        "copy engines of a device",
        ("direction", "engines", "rate", "alpha"),
        [
            (e.direction, e.count, f"{e.bandwidth / 1e9:.4g} GB/s", f"{e.alpha_us:.4g} us")
            for e in hardware.copy_engines
        ],
    )
    print_table("where the numbers come from", ("what", "source"), sorted(hardware.sources.items()))


def _device_rows(hardware: Hardware) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    first = 0
    for device in hardware.devices:
        local = ranges(tuple(range(first, first + device.count))) if device.count <= 4096 else f"{device.count} devices"
        first += device.count
        flops = "\n".join(f"{name} {rate / 1e12:.4g}" for name, rate in device.peak_flops.items())
        bandwidth = device.memory_bandwidth and f"{device.memory_bandwidth / 1e9:.4g} GB/s"
        memory = device.memory_bytes and format_bytes(device.memory_bytes)
        launch = f"{device.launch_us:.4g} us" if device.launch_us else None
        rows.append((local, device.model, device.kind, memory, bandwidth, flops, launch))
    return rows


def _cost(alpha: float | None, beta: float | None, count: int) -> tuple[str | None, str | None, str | None]:
    """Texts of alpha, beta and rate over `count` parallel links; 1 MB is 2^20 bytes, 1 GB/s is 10^9 bytes per s."""
    shared = None if beta is None else beta / count
    return (
        None if alpha is None else f"{alpha:.4g} us",
        None if shared is None else f"{shared:.4g} us/MiB",
        f"{MEBIBYTE / shared / 1e3:.4g} GB/s" if shared else None,
    )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def _show_fits(fits: dict[str, LinkFit]) -> None:
    print_table(
        "fits (95 % intervals by resampling the repeats)",
        ("link", "alpha us", "interval", "beta us/MiB", "interval", "relative error"),
        [
            (
                name,
                f"{fit.alpha_us:.4g}",
                "{:.4g} to {:.4g}".format(*fit.alpha_interval),
                f"{fit.beta_us_per_MB:.4g}",
                "{:.4g} to {:.4g}".format(*fit.beta_interval),
                f"{fit.residual:.1%}",
            )
            for name, fit in fits.items()
        ],
    )
