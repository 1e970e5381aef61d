"""NCCL's own algorithms next to our programs: a table for the terminal, one for the report, a line for one plan."""

from __future__ import annotations

from itertools import groupby

import typer

from treadle.cli.output import print_table
from treadle.planner.documents.collective import Collective
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.documents.selection import NcclRange, Selection
from treadle.planner.machine.nccl import NcclMethod, best, call_bytes, candidates, library_of
from treadle.planner.passes.collective.rivals import fitted
from treadle.report.page import Table

TITLE = "NCCL's own algorithms, by its model of itself"
UNFITTED = "not fitted to this machine and so optimistic: treadle profile import fits it to logs of nccl-tests"


def print_rivals(selection: Selection) -> None:
    """NCCL's own best next to what we would run, and who is ahead; nothing where they are not compared."""
    columns = ("from", "to", "NCCL's best", "channels", "NCCL us", "to us", "our us", "to us", "NCCL / ours", "to")
    rows = [
        (
            format_bytes(rival.min_bytes),
            format_bytes(rival.max_bytes),
            f"{rival.algorithm} {rival.protocol}",
            " to ".join(dict.fromkeys(map(str, rival.channels))),
            *(f"{time:,.3f}" for time in (*rival.time_us, *(rival.plan_us or ()))),
            *(f"{gain:.2f}" for gain in rival.gains),
        )
        for rival in selection.compared
    ]
    if rows:
        print_table(TITLE, columns, rows)
        typer.echo(ahead(selection))


def rivals_table(selection: Selection) -> tuple[Table, ...]:
    """The same as a table of the report, if there is any."""
    rows = tuple(
        (
            f"{format_bytes(rival.min_bytes)} to {format_bytes(rival.max_bytes)}".replace(" ", "\u00a0"),
            f"{rival.algorithm} {rival.protocol}",
            " to ".join(f"{time:,.2f}" for time in rival.time_us),
            " to ".join(f"{time:,.2f}" for time in rival.plan_us or ()),
            " to ".join(f"{gain:.2f}" for gain in rival.gains),
        )
        for rival in selection.compared
    )
    head = ("input of one rank", "NCCL's best", "NCCL us", "our program us", "NCCL / ours")
    return (Table(head, rows, f"{TITLE}: {ahead(selection)}."),) if rows else ()


def ahead(selection: Selection) -> str:
    """Where NCCL's own best is predicted to take less time than the programs."""

    def behind(rival: NcclRange) -> bool:
        return min(rival.gains) < 1

    how = "" if selection.rivals_fitted else f" (its model is {UNFITTED})"
    runs = [list(run) for slower, run in groupby(selection.compared, key=behind) if slower]
    if not runs:
        return f"our programs take no longer than NCCL's best, at the ends of all ranges{how}"
    spans = " and ".join(f"{format_bytes(run[0].min_bytes)} to {format_bytes(run[-1].max_bytes)}" for run in runs)
    return f"NCCL's best takes less time than our programs, at one end of a range or both, for {spans}{how}"


def rival_facts(hardware: Hardware, collective: Collective, input_bytes: int) -> dict[str, float]:
    """us of NCCL's own algorithms for one size, by method; nothing where NCCL is not priced."""
    library = library_of(hardware)
    if isinstance(library, str):
        return {}
    nbytes = call_bytes(collective, library.ranks, input_bytes)
    return _times(candidates(library, collective), nbytes)


def print_rival(hardware: Hardware, collective: Collective, input_bytes: int, plan_us: float | None) -> None:
    """NCCL's best for one size in a line, next to the simulated time of a program, and what else was priced."""
    library = library_of(hardware)
    found = () if isinstance(library, str) else candidates(library, collective)
    if isinstance(library, str) or not found:
        return
    nbytes = call_bytes(collective, library.ranks, input_bytes)
    first = best(found, nbytes)
    time = first.time_us(nbytes)
    print_table(TITLE, ("method", "us"), [(name, f"{us:,.3f}") for name, us in _times(found, nbytes).items()])
    channels = many(first.channels(nbytes), "channel")
    line = f"NCCL's best is {first.algorithm} {first.protocol} on {channels}, {time:,.3f} us"
    if plan_us:
        line += f", {time / plan_us:.2f} of the plan's time"
    typer.echo(line if fitted(hardware) else f"{line}; its model is {UNFITTED}")


def _times(found: tuple[NcclMethod, ...], nbytes: int) -> dict[str, float]:
    ranked = sorted(found, key=lambda candidate: candidate.time_us(nbytes))
    return {str(candidate.method): round(candidate.time_us(nbytes), 3) for candidate in ranked}
