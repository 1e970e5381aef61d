"""Whether the schemes of a plan that says that it was measured are those that its records end with.

The names of choices stand here once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.planner.documents.tuned import Tuned
from treadle.planner.passes.sparse.check import cheapest
from treadle.planner.passes.sparse.decisions import SparseDecisions

TOGETHER, IN_ISOLATION, PRICED, DENSE = (
    "schemes of all gradients",
    "fastest schemes in isolation",
    "cheapest schemes",
    "all dense",
)


def wrong_tuned(decisions: SparseDecisions, records: Sequence[Tuned]) -> Iterator[str]:
    """Findings: no record of a gradient, and schemes that are not those that were chosen, of all gradients together
    where they were measured together."""
    if decisions.measured != bool(records):
        found = "no record of it" if decisions.measured else "records of measurements"
        yield f"$.decisions.measured: found {str(decisions.measured).lower()}, and {found}"
        return
    if not records:
        return
    chosen = {each.what: each.chosen for each in records}
    together = chosen.get(TOGETHER, IN_ISOLATION)
    for place, each in enumerate(decisions.gradients):
        path, fastest = f"$.decisions.gradients[{place}].scheme", chosen.get(f"scheme of {each.name}")
        if fastest is None:
            yield f"{path}: found {each.scheme}, expected a record of what was measured of {each.name}"
            continue
        known = {IN_ISOLATION: fastest, PRICED: cheapest(decisions, each.costs).scheme, DENSE: "dense"}
        if each.scheme != known.get(together):
            yield f"{path}: found {each.scheme}, expected {known.get(together)}: {together} were measured as fastest"
