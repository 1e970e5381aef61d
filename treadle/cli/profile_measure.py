"""`treadle profile measure`: this machine, or the network between hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from treadle.cli.json_output import print_json
from treadle.cli.options import Json, document_option, hardware_option, percent, positive, whole
from treadle.cli.output import live_line, note, print_table
from treadle.cli.profile_hardware import show_hardware
from treadle.planner.documents import store
from treadle.planner.documents.quantities import parse_bytes, parse_list
from treadle.planner.errors import InputError
from treadle.probe.echo import MOST_PROBES
from treadle.probe.ssh_crew import SSH

if TYPE_CHECKING:
    from treadle.probe.fit import LinkFit


def _measured_kind(options: Mapping[str, Any]) -> str:
    """The kind of document that `measure` writes with these options."""
    if options["sparse"]:
        return "sparse-costs"
    if options["server"]:
        return "server-parts"
    if options["index"]:
        return "index-model"
    if options["pairs"] or options["hosts"]:
        return "cost-matrix"
    return "compression-costs" if options["compression"] else "hardware"


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
    server: Annotated[
        bool, typer.Option("--server", help="Measure the parts of this machine as a parameter server.")
    ] = False,
    index: Annotated[
        bool, typer.Option("--index", help="Learn to predict which leaves of a learned index are fastest.")
    ] = False,
    minutes: Annotated[
        float | None,
        positive("With --index: minutes to measure; learning takes some more. [default: 15]"),
    ] = None,
    together: Annotated[
        int | None,
        whole("With --compression: processes that measure at once and share the cores. [default: 1]", least=1, most=64),
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(metavar="HOSTFILE", help="Measure between every two of these hosts, reached by ssh.")
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="As one rank of several: measure between every two of their hosts.")
    ] = False,
    ssh: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help=f"With --hosts: runs a command on a host. [default: {SSH}]"),
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --hosts or --pairs: the network interface. [default: that of GLOO_SOCKET_IFNAME, or the one "
            "towards the first host]",
        ),
    ] = None,
    probes: Annotated[
        int | None,
        whole(
            "With --hosts or --pairs: echoes in each direction of a pair; 1000 of 100 us take 0.2 s a round, one round "
            "less than there are hosts. [default: 1000]",
            least=1,
            most=MOST_PROBES,
        ),
    ] = None,
    percentile: Annotated[
        float | None, percent("With --hosts or --pairs: the percentile of echoes that counts. [default: 10]")
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
    collectives of torch.distributed between them too. With --sparse it is what the kernels of sparse gradients cost,
    with --server what parts a parameter server on this machine has. With --index it is a model that predicts how fast
    the configurations of a learned index are; Ctrl-C ends measuring, and what was measured is not lost.
    With --hosts or --pairs it is a cost matrix: what it costs to send between every two hosts.
    """
    if hosts is not None or pairs:
        _refuse_others(
            "--hosts" if hosts is not None else "--pairs",
            {
                "--world": world,
                "--sizes": sizes,
                "--backend": backend,
                "--hardware": hardware,
                "--compression": compression,
                "--sparse": sparse or None,
                "--server": server or None,
                "--index": index or None,
                "--together": together,
            },
        )
        from treadle.cli.profile_pairs import measure_pairs

        measure_pairs(hosts, ssh, interface, probes, percentile, output, as_json)
        return
    for option, value in (
        ("--ssh", ssh),
        ("--interface", interface),
        ("--probes", probes),
        ("--percentile", percentile),
    ):
        if value is not None:
            raise InputError("found neither --hosts nor --pairs, expected one of them with it", where=option)
    if minutes is not None and not index:
        raise InputError("found no --index, expected it with this option", where="--minutes")
    if sparse or server or index:
        _refuse_others(
            "--sparse" if sparse else "--server" if server else "--index",
            {
                "--world": world,
                "--sizes": sizes,
                "--backend": backend,
                "--hardware": hardware,
                "--compression": compression,
                "--together": together,
                "--server": (server and sparse) or None,
                "--index": (index and (server or sparse)) or None,
            },
        )
        if index:
            from treadle.cli.profile_index import measure_index_model

            measure_index_model(minutes, output, as_json)
            return
        if server:
            from treadle.cli.profile_server import measure_server_parts

            measure_server_parts(output, as_json)
            return
        from treadle.cli.profile_sparse import measure_sparse_costs

        measure_sparse_costs(output, as_json)
        return
    if compression:
        _refuse_others("--compression", {"--world": world, "--backend": backend, "--hardware": hardware})
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
    show_hardware(result.hardware)
    _show_fits(result.fits)


def _refuse_others(given: str, options: Mapping[str, object]) -> None:
    """Raises InputError for an option that does not go with the one that is given."""
    for option, value in options.items():
        if value is not None:
            raise InputError(f"found {given} too, expected one of the two", where=option)


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
    show_hardware(found)


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
