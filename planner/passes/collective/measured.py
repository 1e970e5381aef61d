"""The fastest program of those that simulation ranks best, by a measurement of the caller (MAPLE, "Selecting MAPLE
parameters").

A form is a candidate of synthesis in one protocol and number of instances. Forms are ranked by the simulated time of
their program; of equal programs the first stands for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from treadle.planner.documents.collective import Protocol
from treadle.planner.documents.tuned import Tuned
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.pricing import Price, in_form, label
from treadle.planner.passes.collective.synthesis import Draft
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import Measuring, Shortlist, measure_in_turns
from treadle.planner.search.top import Predicted

WHAT = "program"
MODEL = "simulator of programs"


class ProgramForm(NamedTuple):
    """A candidate of synthesis, by its method, at the price of one protocol and number of instances."""

    method: str
    price: Price
    decisions: CollectiveDecisions

    @property
    def name(self) -> str:
        """`ring, Simple x 2`."""
        return f"{self.method}, {label(self.price.protocol, self.price.instances)}"


def measured(
    drafts: Mapping[str, Draft], prices: Mapping[str, Price], measuring: Measuring[CollectiveDecisions], clock: Clock
) -> tuple[ProgramForm, Tuned] | None:
    """The fastest form, and the record of all; None where Ctrl-C ended the measurement.

    Raises InputError where no program was simulated, or none of those measured may be taken.
    """
    forms = forms_of(drafts, prices)
    if not forms:
        why = dict.fromkeys(str(price.transport.get("by_size", "it is no program")) for price in prices.values())
        raise InputError(f"found no program that was simulated: {'; '.join(why)}", where="--measure")
    predicted = [Predicted(form.name, 1000 * (form.price.time_us or 0.0)) for form in forms]
    shortlist = Shortlist(WHAT, predicted, [form.decisions for form in forms])
    for tuned in measure_in_turns(MODEL, [shortlist], measuring, clock):
        return next(form for form in forms if form.name == tuned.chosen), tuned
    return None


def forms_of(drafts: Mapping[str, Draft], prices: Mapping[str, Price]) -> list[ProgramForm]:
    """The forms of the drafts whose programs were simulated, in their order."""
    forms: list[ProgramForm] = []
    seen: set[object] = set()
    for method, price in prices.items():
        for name, time_us in price.transport.get("simulated_us", {}).items():
            protocol, instances = name.split(" x ")
            each = form_of(method, drafts[method], price, protocol, int(instances), time_us)
            found = each.decisions
            program = (found.transfers, found.chunk_bytes, found.protocol, found.instances)
            if program not in seen:
                seen.add(program)
                forms.append(each)
    return forms


def form_of(method: str, draft: Draft, price: Price, protocol: Protocol, instances: int, time_us: float) -> ProgramForm:
    """The draft in this protocol and number of instances, at its simulated time."""
    transport = {
        **{key: value for key, value in price.transport.items() if not key.startswith("symmetric")},
        "chosen": label(protocol, instances),
        "program_us": time_us,
    }
    one = replace(price, time_us=time_us, protocol=protocol, instances=instances, ordered=False, transport=transport)
    return ProgramForm(method, one, in_form(decisions_of(draft, instances, protocol), one))
