"""What `treadle plan sparse` is given, as a problem and the documents it was made from."""

from __future__ import annotations

from pathlib import Path

from treadle.cli.output import note
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.sources import load_named
from treadle.planner.documents.sparse_costs import SparseCosts
from treadle.planner.documents.sparsity import Sparsity
from treadle.planner.passes.sparse.extract import problem_of
from treadle.planner.passes.sparse.problem import SparseProblem
from treadle.probe.resolve import load_hardware

SHIPPED_COSTS = "cpu-epyc"
"""The costs that are taken without --costs, on CPUs; none of GPUs ship."""
Given = tuple[SparseProblem, dict[str, InputRef]]


def by_hand(file: str) -> Given:
    """The problem in a file. Raises InputError for a file that holds another thing."""
    problem = store.load(file, SparseProblem)
    return problem, {"problem": InputRef(file=Path(file).name, digest=store.digest(problem))}


def from_sparsity(file: str, hardware: str, nodes: int | None, costs: str | None) -> Given:
    """The problem of recorded gradients on a machine; without `costs` those that ship for its kind of device, if any.
    Raises InputError as `problem_of`, and for files that are no documents."""
    sparsity, profile = store.load(file, Sparsity), load_hardware(hardware, nodes)
    inputs = {
        "sparsity": InputRef(file=Path(file).name, digest=store.digest(sparsity)),
        "hardware": InputRef(file=hardware, digest=store.digest(profile)),
    }
    name = costs or shipped_costs(profile)
    known = None if name is None else load_named(SparseCosts, name)
    if known is None:
        note(
            "no costs of kernels ship for this kind of device, so work takes no time; --costs FILE takes measured ones"
        )
    elif name is not None:
        inputs["costs"] = InputRef(file=name, digest=store.digest(known))
        if costs is None:
            note(f"work is priced as on {known.name}; --costs FILE takes measured ones")
    return problem_of(sparsity, profile, known), inputs


def shipped_costs(hardware: Hardware) -> str | None:
    """The shipped costs for the kind of the profile's devices by name, None if none ship."""
    return SHIPPED_COSTS if all(device.kind == "cpu" for device in hardware.devices) else None
