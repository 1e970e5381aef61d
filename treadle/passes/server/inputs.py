"""What `treadle plan server` is given, as a problem and the documents it was made from."""

from __future__ import annotations

from pathlib import Path

from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.scalars import Document
from treadle.planner.documents.server_parts import ServerParts
from treadle.planner.documents.sources import load_named
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.server.extract import ServerSetup, parts_of, problem_of
from treadle.planner.passes.server.keys import ServerKeys
from treadle.planner.passes.server.price_list import ServerPrices
from treadle.planner.passes.server.problem import ServerProblem
from treadle.probe.resolve import load_hardware

Given = tuple[ServerProblem, dict[str, InputRef]]


def by_hand(file: str) -> Given:
    """The problem in a file. Raises InputError for a file that holds another thing."""
    problem = store.load(file, ServerProblem)
    return problem, {"problem": _reference(Path(file).name, problem)}


def from_model(
    trace: str | None,
    keys: str | None,
    parts: str | None,
    hardware: str | None,
    nodes: int | None,
    prices: str | None,
    setup: ServerSetup,
) -> Given:
    """The problem of a trace or of keys on the named parts, or on those of the hardware. Raises InputError as
    `problem_of`, and for files that are no documents."""
    inputs: dict[str, InputRef] = {}
    profile = None if hardware is None else load_hardware(hardware, nodes)
    if profile is not None and hardware is not None:
        inputs["hardware"] = _reference(hardware, profile)
    model: ServerKeys | Trace
    if trace is not None:
        step = store.load(trace, Trace)
        inputs["trace"] = _reference(Path(trace).name, step)
        model = _with_times(step, profile)
    else:
        model = store.load(keys or "", ServerKeys)
        inputs["keys"] = _reference(Path(keys or "").name, model)
    if parts is not None:
        machine = load_named(ServerParts, parts)
        inputs["parts"] = _reference(parts, machine)
    elif profile is not None:
        machine = parts_of(profile)
    else:
        raise InputError("found neither, expected the parts of a server or hardware", where="--parts")
    costs = None if prices is None else load_named(ServerPrices, prices)
    if costs is not None and prices is not None:
        inputs["prices"] = _reference(prices, costs)
    return problem_of(model, machine, hardware=profile, setup=setup, prices=costs), inputs


def _reference(name: str, document: Document) -> InputRef:
    return InputRef(file=name, digest=store.digest(document))


def _with_times(trace: Trace, hardware: Hardware | None) -> Trace:
    """The trace with modelled times where it has none and the hardware is known."""
    if trace.costs.model != "absent" or hardware is None:
        return trace
    from treadle.capture.costs import with_roofline  # imports torch, which takes seconds

    return with_roofline(trace, hardware)
