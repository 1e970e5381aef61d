"""Run every benchmark, or those named: `python -m benchmarks [NAME...] [--json]`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import click

from benchmarks.common import Table, show

NAMES = (
    "timeline",
    "capture",
    "costs",
    "collective.synthesis",
    "collective.quality",
    "collective.order",
    "collective.cpu",
    "collective.gpu",
    "collective.xml_simulation",
    "memory.execution",
    "memory.models",
    "memory.equal_peak",
    "memory.gpu",
    "memory.partitioner",
    "memory.planning",
    "memory.tight",
    "memory.ablation",
    "memory.savings",
    "swap.models",
    "swap.evaluation",
    "swap.baselines",
    "swap.real",
    "swap.search",
    "swap.inference",
    "swap.recompute",
    "fusion.published",
    "fusion.planning",
    "fusion.stress",
    "fusion.reachable",
    "fusion.tables",
    "fusion.resources",
    "fusion.cpu",
    "fusion.gpu",
)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--list", "only_list", is_flag=True, help="List the benchmarks.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def main(names: tuple[str, ...], only_list: bool, as_json: bool) -> None:
    """Measure every figure that README and docs quote; each NAME also runs alone as `python -m benchmarks.NAME`."""
    if only_list:
        for name in NAMES:
            click.echo(f"{name:26}{import_module(f'benchmarks.{name}').tables.__doc__}")
        return
    show(_all(names or NAMES), as_json)


def _all(names: tuple[str, ...]) -> Iterator[Table]:
    for name in names:
        yield from import_module(f"benchmarks.{name}").tables()


if __name__ == "__main__":
    main()
