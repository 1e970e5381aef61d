"""`python -m benchmarks.gpu [--dry] [ITEM...]`: every check, or those named; prints a table, writes docs/gpu.json."""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks.gpu import card, record
from benchmarks.gpu.items import ITEMS, Item
from benchmarks.gpu.launch import DRY_FACTOR, FOLDER, ROOT, Record, environment, run

LIMIT = 465.0
"""Seconds for all checks on a card."""
MISSING_BACKEND = 5
FIGURE = 92


def main(arguments: Sequence[str]) -> int:
    """The exit code. One line on stderr and 5 without a card, PyTorch or nvcc."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="compile everything and run what needs no card, on the CPU")
    names = [item.name for item in ITEMS]
    parser.add_argument("items", nargs="*", metavar="ITEM", help=f"of {', '.join(names)}; all by default")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.items) - set(names)):
        parser.error(f"found {unknown[0]!r}, expected some of {', '.join(names)}")
    env = environment()
    facts = card.facts(env)
    if why := missing(facts, chosen.dry):
        print(f"error: {why}", file=sys.stderr)
        return MISSING_BACKEND
    items = [item for item in ITEMS if item.name in (chosen.items or names)]
    print(title(facts, chosen.dry), flush=True)
    records = []
    for each in shown(checked(items, chosen.dry, env)):
        records.append(each)
        if not chosen.dry and not chosen.items:
            record.saved(facts, datetime.date.today().isoformat(), records)
    return 0 if all(each.good for each in records) else 1


def missing(facts: dict[str, str | int | None], dry: bool) -> str | None:
    """What the machine lacks, None where it has all that is needed."""
    if shutil.which("nvcc") is None:
        return "found no nvcc; install the CUDA toolkit 12 or newer and put its bin folder on PATH"
    if facts["torch"] is None:
        return f"PyTorch cannot be imported: {facts['why']}; install PyTorch 2.9 or newer"
    if facts["card"] is None and not dry:
        return "found no GPU that PyTorch can use; `make gpu DRY=1` runs all that needs none"
    return None


def title(facts: dict[str, str | int | None], dry: bool) -> str:
    where = "dry run on the CPU" if dry else f"{facts['cards']} x {facts['card']} ({facts['architecture']})"
    software = ", ".join(f"{name} {facts[name]}" for name in ("driver", "nvcc", "torch", "python") if facts[name])
    return f"{where}: {software}"


def checked(items: Sequence[Item], dry: bool, env: dict[str, str]) -> Iterator[Record]:
    """The record of each item as soon as it ended; once the time of all is over the rest is not run."""
    begin = time.monotonic()
    for item in items:
        left = float("inf") if dry else LIMIT - (time.monotonic() - begin)
        limit = min(float(item.seconds * (DRY_FACTOR if dry else 1)), left)
        if limit < 1:
            yield Record(item.name, "not run", f"the {LIMIT:.0f} s of all checks were over", 0.0)
        else:
            yield run(item, dry, limit, env)


def shown(records: Iterator[Record]) -> Iterator[Record]:
    """Print a row of the table for each, and after the last what those that are not good printed."""
    print(f"{'check':20}{'result':11}{'s':>6}  figure", flush=True)
    bad = []
    for each in records:
        cut = each.figure if len(each.figure) <= FIGURE else f"{each.figure[: FIGURE - 3]}..."
        print(f"{each.item:20}{each.result:11}{each.seconds:6.1f}  {cut}", flush=True)
        bad += [] if each.good else [each]
        yield each
    for each in bad:
        print(f"\n{each.item}: {each.figure}", *each.detail, sep="\n  ")
    if bad:
        print(f"\n{len(bad)} not good; logs in {FOLDER.relative_to(ROOT) / 'logs'}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
