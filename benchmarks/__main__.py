"""Run every benchmark, or those named: `python -m benchmarks [NAME...] [--json]`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import click

from benchmarks.common import Table, show

FOLDERS = {
    "collective": "synthesis quality order cpu gpu xml_simulation",
    "memory": "execution models equal_peak gpu partitioner planning tight ablation savings",
    "swap": "models evaluation baselines real search inference recompute",
    "fusion": "published planning stress reachable tables resources cpu gpu",
}
NAMES = (
    *("timeline", "capture", "costs"),
    *(f"{folder}.{name}" for folder, names in FOLDERS.items() for name in names.split()),
)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice((*NAMES, *FOLDERS)))
@click.option("--list", "only_list", is_flag=True, help="List the benchmarks.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def main(names: tuple[str, ...], only_list: bool, as_json: bool) -> None:
    """Measure every figure that README and docs quote; a NAME such as `swap` runs all benchmarks of its folder."""
    if only_list:
        for name in NAMES:
            click.echo(f"{name:26}{import_module(f'benchmarks.{name}').tables.__doc__}")
        return
    show(_tables(names or NAMES), as_json)


def _tables(names: tuple[str, ...]) -> Iterator[Table]:
    for chosen in names:
        for name in NAMES:
            if name == chosen or name.startswith(f"{chosen}."):
                yield from import_module(f"benchmarks.{name}").tables()


if __name__ == "__main__":
    main()
