"""What `treadle plan compression` is given, as a problem and the documents it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from treadle.cli.output import note
from treadle.planner.documents import store
from treadle.planner.documents.compression_costs import CompressionCosts
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.selection import Selection
from treadle.planner.documents.sources import load_named
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.compression.extract import problem_of
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.probe.resolve import load_hardware

SHIPPED_COSTS = {"cpu": "cpu-epyc", "gpu": "v100"}
"""The costs that are taken without --costs, by the kind of device."""
Given = tuple[CompressionProblem, dict[str, InputRef]]


def by_hand(file: str) -> Given:
    """The problem in a file. Raises InputError for a file that holds another thing."""
    problem = store.load(file, CompressionProblem)
    return problem, {"problem": InputRef(file=Path(file).name, digest=store.digest(problem))}


def from_trace(
    trace: str, hardware: str, nodes: int | None, costs: str | None, compressors: Sequence[str], collectives: str | None
) -> Given:
    """The problem of a step on a machine; without `costs` those that ship for its kind of device. Raises InputError as
    `problem_of`, and for files that are no documents."""
    profile, step = load_hardware(hardware, nodes), store.load(trace, Trace)
    name = costs or shipped_costs(profile)
    known = load_named(CompressionCosts, name)
    if costs is None:
        note(f"compressors are priced as on {known.name}; for --costs FILE `treadle profile measure --compression NAME "
             "-o FILE` measures yours")  # fmt: skip
    planned = None if collectives is None else store.load(collectives, Selection)
    inputs = {
        "trace": InputRef(file=Path(trace).name, digest=store.digest(step)),
        "hardware": InputRef(file=hardware, digest=store.digest(profile)),
        "costs": InputRef(file=name, digest=store.digest(known)),
    }
    if planned is not None and collectives is not None:
        inputs["collectives"] = InputRef(file=collectives, digest=store.digest(planned))
    return problem_of(_with_times(step, profile), profile, known, compressors, planned=planned), inputs


def shipped_costs(hardware: Hardware) -> str:
    """The shipped costs for the kind of the profile's devices, by name."""
    return SHIPPED_COSTS["cpu" if all(device.kind == "cpu" for device in hardware.devices) else "gpu"]


def _with_times(trace: Trace, hardware: Hardware) -> Trace:
    """The trace with modelled times where it has none."""
    if trace.costs.model != "absent":
        return trace
    from treadle.capture.costs import with_roofline  # imports torch, which takes seconds

    return with_roofline(trace, hardware)
