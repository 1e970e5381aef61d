"""`treadle plan collective --sizes`: a folder of plans and the selection that says which serves which size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from treadle.cli.json_output import print_json
from treadle.cli.output import print_table, require_same
from treadle.cli.progress import ProgressLine
from treadle.cli.sweep import older_plans, print_written, remove_plans
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.overwrite import require_replaceable
from treadle.planner.documents.pattern import Pattern
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.documents.selection import FILE_NAME, Selection
from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import InputError
from treadle.planner.search.clock import Clock


def plan_sizes(
    collective: Any,
    hardware: Hardware,
    sketch: Sketch | None,
    sizes: str,
    output: str,
    *,
    method: str,
    root: int,
    pattern: Pattern | None,
    instances: int | None,
    protocol: Any,
    limits: Any,
    clock: Clock,
    line: ProgressLine,
    hardware_file: str,
    sketch_file: str | None,
    pattern_file: str | None,
    as_json: bool,
) -> None:
    """Plan for all `sizes`, write the folder `output`, print the table. Without a sketch one is proposed for small
    sizes and one for large ones, where they differ.

    Raises InputError where a file of another kind would be replaced.
    """
    from treadle.passes.collective import tuning
    from treadle.passes.collective.rivals import print_rivals
    from treadle.planner.passes.collective.limits import Effort
    from treadle.planner.passes.collective.planning import make_request, references
    from treadle.planner.passes.collective.sweep import Guide, parse_sizes, sweep

    wanted = parse_sizes(sizes)
    folder = Path(output)
    older = older_plans(
        folder, FILE_NAME, lambda: [entry.plan.file for entry in store.load(folder / FILE_NAME, Selection).entries]
    )
    if pattern is not None and pattern.input_bytes() is not None:
        raise InputError("the pattern's unit fixes the size, expected one without a unit", where="--sizes")
    sketches = (
        proposed(hardware, collective, wanted) if sketch is None else {wanted[0]: (sketch, sketch_file or sketch.name)}
    )
    kept = dict(sorted((file, guide) for guide, file in sketches.values())) if sketch is None else {}
    for file, guide in kept.items():
        require_replaceable(folder / file, "sketch", [hardware_file, pattern_file])
        require_same(folder / file, store.dumps(guide), [folder / name for name in sorted(older)])
    guides = [
        Guide(
            start,
            make_request(collective, hardware, guide, None, root, pattern, pattern_file),
            references(hardware, guide, pattern, {"hardware": hardware_file, "sketch": file, "pattern": pattern_file}),
        )
        for start, (guide, file) in sketches.items()
    ]
    given = instances or (None if sketch is None else sketch.instances)
    effort = Effort(limits.within(guides[0].request.sketch), line, clock)

    with clock.listening():
        plans, selection = sweep(
            guides,
            wanted,
            effort,
            method=method,
            instances=instances,
            protocol=protocol,
            pricing=tuning.pricing(hardware, protocol, given),
            on_step=line.begin,
        )
    for name in (*plans, FILE_NAME):
        kind = "selection" if name == FILE_NAME else "plan"
        require_replaceable(folder / name, kind, [hardware_file, sketch_file, pattern_file])
    for name, plan in sorted(plans.items()):
        store.save(plan, folder / name)
    store.save(selection, folder / FILE_NAME)
    for file, guide in kept.items():
        store.save(guide, folder / file)
    remove_plans(folder, older - plans.keys())
    if as_json:
        print_json("plan-collective-sizes", {"output": output, "selection": msgspec.to_builtins(selection)})
        return
    _print(selection)
    print_rivals(selection)
    print_written([many(len(plans), "plan"), *kept, FILE_NAME], output)


PROPOSED = ("sketch.json", "small.sketch.json", "large.sketch.json")


def proposed(hardware: Hardware, collective: str, sizes: Sequence[int]) -> dict[int, tuple[Sketch, str]]:
    """Sketches for the machine and the names of their files, by the size from which on they are meant: one for the
    smallest and one for the largest size, or only one where they say the same."""
    from treadle.planner.passes.collective.sketching import propose
    from treadle.planner.passes.collective.sweep import anchors

    def at(size: int) -> Sketch:
        made = propose(hardware, collective=collective, size_bytes=size)
        return msgspec.structs.replace(
            made, hyperparameters=msgspec.structs.replace(made.hyperparameters, input_size=None)
        )

    small, large = at(sizes[0]), at(sizes[-1])
    if small == large:
        return {sizes[0]: (small, PROPOSED[0])}
    start = next(size for size in anchors(sizes) if at(size) != small)
    return {sizes[0]: (small, PROPOSED[1]), start: (large, PROPOSED[2])}


def _print(selection: Selection) -> None:
    """The selection as a person reads it: of each range the times at both ends."""
    plans = len({entry.plan.file for entry in selection.entries})
    span = f"{format_bytes(selection.entries[0].min_bytes)} to {format_bytes(selection.entries[-1].max_bytes)}"
    title = (
        f"{selection.name}, {span} each: {many(plans, 'algorithm')}, within {selection.tolerance:.0%} of the best "
        f"found at {many(len(selection.sizes), 'size')}"
    )
    columns = ("from", "to", "protocol", "inst", "us", "to us", "bound us", "to us", "simulated us", "to us", "plan")
    rows = []
    for entry in selection.entries:
        run = entry.simulated_us.get(f"{entry.protocol} x {entry.instances}", (None, None))
        times = (None if time is None else f"{time:,.3f}" for time in (*entry.predicted_us, *entry.bound_us, *run))
        ends = (format_bytes(entry.min_bytes), format_bytes(entry.max_bytes))
        rows.append((*ends, entry.protocol, entry.instances, *times, entry.plan.file))
    print_table(title, columns, rows)
