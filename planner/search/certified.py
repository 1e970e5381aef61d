"""Plans that the independent checker of their pass accepted, with the certificate that their figures and bound give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from treadle.planner.documents.plan import VERSION, Certificate, InputRef, Plan, Prediction, Provenance
from treadle.planner.documents.scalars import Decisions
from treadle.planner.errors import CheckFailed
from treadle.planner.search.bound import Bound
from treadle.planner.search.check_tuned import check_tuned
from treadle.planner.solver import relative_gap

D = TypeVar("D", bound=Decisions)


def certified(
    decisions: D,
    *,
    time_ns: int,
    bound: Bound,
    sentence: Callable[[Bound], str],
    check: Callable[[D], list[str]],
    provenance: Provenance,
    inputs: Mapping[str, InputRef],
    peak_bytes: int | None = None,
    predicted_us: float | None = None,
    unsimulated: str | None = None,
) -> Plan[D]:
    """The plan of `decisions`, which take `time_ns`; `predicted_us` is its prediction if that is another time,
    `unsimulated` why that is the time of its schedule and not that of its program.

    `sentence` prints the argument of `bound`. Raises CheckFailed if `check`, the checker of the pass, has findings, or
    the record of what was measured is not that of its choice.
    """
    if findings := check(decisions) + check_tuned(provenance):
        name = decisions.__struct_config__.tag
        raise CheckFailed(f"the {name} plan fails its check; this is a bug, please report it", tuple(findings))
    return Plan(
        version=VERSION,
        inputs=dict(inputs),
        decisions=decisions,
        prediction=Prediction(time_us=time_ns / 1000 if predicted_us is None else predicted_us, peak_bytes=peak_bytes),
        certificate=certificate(check.__module__, time_ns, bound, sentence, unsimulated),
        provenance=provenance,
    )


def certificate(
    checker: str, time_ns: int, bound: Bound, sentence: Callable[[Bound], str], unsimulated: str | None = None
) -> Certificate:
    """The certificate of a plan that takes `time_ns`, bounded by `bound` and accepted by `checker`."""
    return Certificate(
        verdict="accepted",
        checker=checker,
        objective=time_ns,
        lower_bound=bound.time_ns,
        unit="ns",
        argument=sentence(bound),
        terms_ns=dict(bound.argument.terms),
        scope=bound.scope,
        gap=relative_gap(time_ns, bound.time_ns) or 0.0,
        optimal=time_ns == bound.time_ns,
        unsimulated=unsimulated,
    )
