"""Run every benchmark, or those named: `python -m benchmarks [NAME...] [--json]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated

import typer

from benchmarks.common import Table, show
from treadle.cli.lazy import new_app
from treadle.cli.options import Json, one_of

FOLDERS = {
    "collective": "synthesis quality uplinks order predictions gpu lab xml_simulation nccl",
    "memory": "execution models equal_peak gpu partitioner planning tight ablation savings",
    "swap": "models evaluation baselines real search inference recompute",
    "compression": "espresso cupcake encode lab accuracy",
    "sparse": "published balance kernels lab",
    "ranks": "search lab",
    "aggregation": "grouping lab autotune",
    "server": "published inside_one lab load",
    "checkpoint": "published placements failures rates load disk iterations trials",
    "tiling": "study peers moves measured dask_chunks placements",
    "index": "throughput phases pareto switches knobs",
    "fusion": "published planning stress reachable tables resources cpu gpu",
}
NAMES = (
    *("timeline", "capture", "costs"),
    *(f"{folder}.{name}" for folder, names in FOLDERS.items() for name in names.split()),
)


main = new_app()


@main.command()
def run(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", parser=partial(one_of, (*NAMES, *FOLDERS)), help="All by default."),
    ] = None,
    only_list: Annotated[bool, typer.Option("--list", help="List the benchmarks.")] = False,
    as_json: Json = False,
) -> None:
    """Measure every figure that README and docs quote; a NAME such as `swap` runs all benchmarks of its folder."""
    if only_list:
        for name in NAMES:
            typer.echo(f"{name:26}{import_module(f'benchmarks.{name}').tables.__doc__}")
        return
    show(_tables(names or NAMES), as_json)


def _tables(names: Sequence[str]) -> Iterator[Table]:
    for chosen in names:
        for name in NAMES:
            if name == chosen or name.startswith(f"{chosen}."):
                yield from import_module(f"benchmarks.{name}").tables()


if __name__ == "__main__":
    main()
