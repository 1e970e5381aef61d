"""`treadle profile`: list, show, measure and import hardware profiles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from treadle.cli.completion import profiles as profile_names
from treadle.cli.json_output import print_json
from treadle.cli.lazy import new_app
from treadle.cli.options import Json, Nodes, document_option, written
from treadle.cli.output import note, print_table
from treadle.cli.profile_hardware import devices_of, fabric_of, show_hardware, summary
from treadle.cli.profile_import import import_
from treadle.cli.profile_measure import measure
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.errors import InputError
from treadle.probe.resolve import LOCAL, load_hardware

command = new_app(
    help="""List, show, measure, import or summarize profiles of hardware and gradients.

Wherever a profile is asked for: a shipped name, a file, or `local` for this machine.
"""
)


@command.command("list")
def list_(*, as_json: Json = False) -> None:
    """List profiles, costs and models that ship with treadle."""
    from treadle.cli.profile_compression import list_costs, shipped_costs
    from treadle.cli.profile_index import list_index_models, shipped_index_models
    from treadle.cli.profile_server import list_server_parts, shipped_server_parts
    from treadle.cli.profile_sparse import list_sparse_costs, shipped_sparse_costs

    profiles = [load_hardware(name) for name in resources.names("profiles")]
    if as_json:
        costs = {
            "compression": [name for name, _ in shipped_costs()],
            "sparse": [name for name, _ in shipped_sparse_costs()],
            "server": [name for name, _ in shipped_server_parts()],
            "index": [name for name, _ in shipped_index_models()],
        }
        print_json("profile-list", {"profiles": [summary(profile) for profile in profiles], **costs})
        return
    rows = [
        (each.name, each.all_nodes, devices_of(each), fabric_of(each), each.network.kind if each.network else "none")
        for each in profiles
    ]
    columns = ("name", "nodes", "devices per node", "links in a node", "network")
    print_table("", columns, [*rows, (LOCAL, 1, "this machine", None, None)])
    list_costs()
    list_sparse_costs()
    list_server_parts()
    list_index_models()


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
        written(
            "--svg",
            kind="picture",
            endings=(".svg",),
            help="Write a picture of the profile or cost matrix to this file.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a profile, costs, parts of a server, a model of indexes, or matrix of hosts.

    NAME is a shipped name, a file, or `local`. Costs are those of compressing gradients, of sparse gradients such as
    sparse/cpu-epyc, or between hosts, as a file. Parts are those such as server/pbox, models those such as
    index/cpu-epyc.
    """
    from treadle.cli.profile_compression import costs_named, show_costs
    from treadle.cli.profile_index import index_model_named, show_index_model
    from treadle.cli.profile_pairs import pairs_in, show_pairs
    from treadle.cli.profile_server import server_parts_named, show_server_parts
    from treadle.cli.profile_sparse import show_sparse_costs, sparse_costs_named

    pairs = pairs_in(name)
    if pairs is not None:
        _refuse({"--nodes": nodes}, "costs between hosts")
        show_pairs(pairs, name, svg, as_json)
        return
    sparse = sparse_costs_named(name)
    if sparse is not None:
        _refuse({"--nodes": nodes, "--svg": svg}, "costs of sparse gradients")
        show_sparse_costs(sparse, as_json)
        return
    parts = server_parts_named(name)
    if parts is not None:
        _refuse({"--nodes": nodes, "--svg": svg}, "parts of a parameter server")
        show_server_parts(parts, as_json)
        return
    model = index_model_named(name)
    if model is not None:
        _refuse({"--nodes": nodes, "--svg": svg}, "a model of learned indexes")
        show_index_model(model, as_json)
        return
    costs = None if name in resources.names("profiles") else costs_named(name)
    if costs is not None:
        _refuse({"--nodes": nodes, "--svg": svg}, "costs of gradient compression")
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
        show_hardware(hardware)


def _refuse(options: Mapping[str, object], found: str) -> None:
    """Raises InputError for an option of hardware profiles that is given."""
    for option, value in options.items():
        if value is not None:
            raise InputError(f"found {found}, expected a hardware profile with it", where=option)


command.command()(measure)
command.command("import")(import_)


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
