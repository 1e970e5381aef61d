"""`treadle profile import`: topologies and measurements of other tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.completion import profiles as profile_names
from treadle.cli.json_output import print_json
from treadle.cli.nccl_library import library_facts, show_library
from treadle.cli.options import Json, document_option, positive, size_option
from treadle.cli.output import note, print_table
from treadle.cli.profile_hardware import devices_of, fabric_of, summary
from treadle.planner.documents import store
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.errors import InputError
from treadle.probe.matrix_import import ENDING
from treadle.probe.resolve import load_hardware

if TYPE_CHECKING:
    from treadle.probe.nccl_fit import CollectiveFit
    from treadle.probe.nccl_library_fit import LibraryFit


def _imported_kind(options: Mapping[str, Any]) -> str:
    """The kind of document that `import` writes."""
    return "cost-matrix" if str(options["file"]).endswith(ENDING) else "hardware"


def import_(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A topology of another tool.")],
    output: Annotated[str, document_option(_imported_kind, "Write the profile to this file.")],
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
        positive("For a TACCL topology or a .csv: its costs are microseconds times this. [default: 1]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Import a topology of another tool as a profile.

    FILE is NCCL or RCCL topology XML or their log (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,GRAPH), lstopo XML, the
    text of `nvidia-smi topo -m`, TACCL topology JSON, or topograph YAML. The output of nccl-tests (its tables, or the
    file of -J) fits the links of that log, or of the profile of --costs-from. FILE.csv, a table of latencies between
    hosts, becomes a cost matrix.
    """
    if file.endswith(ENDING):
        for option, value in (("--costs-from", costs_from), ("--message-size", message_size)):
            if value is not None:
                raise InputError("found a table of latencies, expected a topology with it", where=option)
        _import_matrix(Path(file), name, cost_scale, output, as_json)
        return
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
        print_json("profile-import", summary(hardware))
        return
    nodes = f"{many(hardware.nodes, 'node')} of " if hardware.nodes > 1 else ""
    note(f"wrote {output}: {nodes}{devices_of(hardware)}, {fabric_of(hardware)}, {many(len(hardware.nics), 'NIC')}")
    for field, source in hardware.sources.items():
        if "assumed" in source:
            note(f"{field}: {source}")
    if any(link.alpha_us is None for link in hardware.links) or any(s.alpha_us is None for s in hardware.switches):
        names = ", ".join(costs_for(hardware)) or "a profile that has costs of all their kinds"
        note(
            "the file gives no latencies, so nothing can be planned on its links yet: "
            f"measure on that machine, or import again with --costs-from {names}"
        )


def _import_matrix(path: Path, name: str | None, scale: float | None, output: str, as_json: bool) -> None:
    from treadle.probe.matrix_import import import_matrix

    costs = import_matrix(path, name, 1.0 if scale is None else scale)
    store.save(costs, output)
    note(f"wrote {output}: latencies between {many(len(costs.hosts), 'host')}")
    if as_json:
        print_json("profile-import-pairs", {"costs": json.loads(store.dumps(costs))})


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
        print_json("profile-import", {**summary(fit.hardware), "fit": found, **nccl})
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
