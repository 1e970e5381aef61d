"""The programs of a fitted model: for each form of call a plan within the budget, or plain PyTorch where that fits.

A form that is met during training is captured at once. If plain PyTorch fits into the budget, it runs; else a plan is
searched for a few seconds, and a better one in the background, which is taken over when it is there. What goes wrong is
one log line, and the form runs as the model itself: training does not end.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from treadle.capture.live import capture_model
from treadle.codegen.memory.torch_module import FILE_NAME, generate
from treadle.fitting.background import BackgroundSearch
from treadle.fitting.call_form import CallForm, ModelCall, form_of
from treadle.fitting.measuring import device_of, measured, plannable
from treadle.fitting.model_state import attributes_of, first_difference, hooks_of, not_compared
from treadle.fitting.plan_cache import PlanCache
from treadle.fitting.plan_entry import PlanEntry
from treadle.fitting.planning import plain_bytes, searched, settled
from treadle.fitting.settings import FitSettings
from treadle.fitting.summary import line_of
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError, LimitError
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.search.rounds import BudgetTooSmall
from treadle.runtime.planned_module import PlannedModule
from treadle.runtime.planned_step import load_step

log = logging.getLogger("treadle.fit")

QUICK_SECONDS = 5.0
"""Search that training waits for; only where it finds nothing, the whole time limit is used."""
MOST_PROGRAMS = 32
"""Forms of call that are held; the one that was not used for longest goes first."""

MOST_STATES = 8
"""Values of the model's attributes with plans of their own."""

Loss = Callable[..., Any] | None


Kept = tuple[Plan[MemoryDecisions], Trace]


@dataclass
class PlannedForm:
    """A plan and the module that runs it; `search` looks for a better one, unless the plan is `settled`."""

    entry: PlanEntry
    plan: Plan[MemoryDecisions]
    trace: Trace
    module: PlannedModule
    settled: bool
    search: BackgroundSearch | None = None


@dataclass(frozen=True)
class PlainForm:
    """The model itself runs; `fits`: because plain PyTorch is known to fit into the budget."""

    fits: bool


class HeldPrograms:
    """Programs by form of call. A pickle or copy has no running searches."""

    def __init__(self, model: nn.Module, loss: Loss, settings: FitSettings) -> None:
        self.model, self.loss, self.settings = model, loss, settings
        self.name = type(model).__name__
        self.cache = PlanCache()
        self.known: OrderedDict[CallForm, PlannedForm | PlainForm] = OrderedDict()
        self.reported: set[str] = set()
        self.written: list[str] = []
        """Attributes that the step captured last sets."""

    def __getstate__(self) -> dict[str, Any]:
        known = [(form, replace(x, search=None) if isinstance(x, PlannedForm) else x) for form, x in self.known.items()]
        return {**self.__dict__, "known": OrderedDict(known), "cache": PlanCache()}

    def of(self, call: ModelCall) -> PlannedModule | None:
        """The program of a training call, None for the model itself."""
        try:
            form = form_of(self.model, call, self.loss)
        except InputError as error:
            self.warn_once(f"runs as it is, out of the budget's control: {error.args[0]}")
            return None
        if form not in self.known:
            if self._is_unsteady(form):
                return None
            with _disable_current_modes():  # such as a meter's, which would count what measuring makes
                self.known[form] = self._met(form, call)
            self._drop_oldest()
        self.known.move_to_end(form)
        found = self.known[form]
        if isinstance(found, PlainForm):
            return None
        if not found.settled:
            self._improve(form, found)
        return found.module

    def capture(self, call: ModelCall) -> Trace:
        """The trace of a call. Raises InputError if it cannot be traced."""
        self.written = []
        return capture_model(
            self.model, call.args, call.kwargs, loss=self.loss, name=self.name, note=self.written.append
        )

    def plan(self, trace: Trace, settings: FitSettings, seconds: float, *, in_step: bool) -> PlannedForm:
        """The kept plan of a captured step, or a new one, for which other processes that want it wait. A kept one is
        taken at once, also while another process searches for a better one.

        Raises what the search raises.
        """
        self._warn_of_what_is_left_out()
        wanted, device = plannable(trace), device_of(self.model)
        entry = self.cache.entry(wanted, settings, device.type)
        kept = _enough(entry.load(wanted, level=logging.DEBUG), settings, seconds)
        if kept is None:
            with entry.locked():
                kept = _enough(entry.load(wanted), settings, seconds)
                if kept is None:
                    log.info(
                        "%s: measuring the calls of a step on %s, then planning for up to %g s",
                        self.name,
                        device.type,
                        min(seconds, settings.time_limit_s),
                    )
                    wanted = measured(wanted, device, in_step=in_step, report=self.cache.report)
                    kept = searched(wanted, settings, seconds), wanted
                    entry = self.cache.saved(entry, *kept)
        plan, wanted = kept
        searchable = entry.folder is not None and not settled(plan, settings)
        return PlannedForm(entry, plan, wanted, self._module(plan, wanted), settled=not searchable)

    def _module(self, plan: Plan[MemoryDecisions], trace: Trace) -> PlannedModule:
        return PlannedModule(self.model, load_step(generate(plan, trace)[FILE_NAME], trace.name))

    def _met(self, form: CallForm, call: ModelCall) -> PlannedForm | PlainForm:
        """Capture and plan a form that is new in the middle of training."""
        if form.is_empty:
            log.info("%s: a batch of %s is empty, and runs as it is", self.name, form.text)
            return PlainForm(fits=True)
        try:
            if any(isinstance(found, PlainForm) and found.fits and form.within(x) for x, found in self.known.items()):
                log.info("%s: a batch of %s is within one that runs as it is, and does too", self.name, form.text)
                return PlainForm(fits=True)
            trace = self.capture(call)
            if self.fits(trace):
                log.info("%s: a batch of %s: %s", self.name, form.text, self.fits_line(trace))
                return PlainForm(fits=True)
            found = self._plan_or_least(form, trace)
            log.info("%s: a batch of %s has a plan of its own: %s", self.name, form.text, line_of(found.plan))
            return found
        except Exception as error:  # whatever it is, training goes on
            reason = " ".join(str(error).split()) or type(error).__name__
            log.warning("%s: a batch of %s has no plan and runs as it is: %s", self.name, form.text, reason)
            return PlainForm(fits=False)

    def fits(self, trace: Trace) -> bool:
        """Whether plain PyTorch is known to fit into the budget."""
        needed, budget = plain_bytes(trace, self.settings), self.settings.budget
        if needed is None:
            return False
        return needed <= budget if isinstance(budget, int) else budget >= 1

    def fits_line(self, trace: Trace) -> str:
        """What is logged then."""
        budget = self.settings.budget
        size = format_bytes(budget) if isinstance(budget, int) else f"{float(budget):g}x of that"
        needed = format_bytes(plain_bytes(trace, self.settings) or 0)
        return f"plain PyTorch needs {needed}, which fits into the budget of {size}: the model runs as it is"

    def _plan_or_least(self, form: CallForm, trace: Trace) -> PlannedForm:
        """A plan within the budget, or the smallest one known with a warning."""
        try:
            return self._plan_soon(trace, self.settings)
        except BudgetTooSmall as error:
            least = error.minimum.budget_bytes
            if least is None:
                raise
            log.warning("%s: a batch of %s exceeds the budget: %s", self.name, form.text, error)
            return self._plan_soon(trace, replace(self.settings, budget=least))

    def _plan_soon(self, trace: Trace, settings: FitSettings) -> PlannedForm:
        try:
            return self.plan(trace, settings, QUICK_SECONDS, in_step=False)
        except LimitError:
            return self.plan(trace, settings, settings.time_limit_s, in_step=False)

    def _improve(self, form: CallForm, found: PlannedForm) -> None:
        """Start a search for a better plan if none is running, or take over what one has found."""
        try:
            if found.search is None:
                if not any(isinstance(other, PlannedForm) and other.search for other in self.known.values()):
                    budget = found.plan.decisions.problem.budget_bytes
                    found.search = BackgroundSearch.start(found.entry, replace(self.settings, budget=budget))
                return
            if not found.search.ended:
                return
            failure, found.search, found.settled = found.search.failure, None, True
            if failure:
                log.info("%s: no better plan for a batch of %s: %s", self.name, form.text, failure)
                return
            kept = found.entry.load(found.trace)
            if kept is not None and kept[0].decisions.objective_ns < found.plan.decisions.objective_ns:
                found.plan, found.module = kept[0], self._module(*kept)
                log.info("%s: a better plan for a batch of %s: %s", self.name, form.text, line_of(found.plan))
        except Exception as error:  # the plan that is there stays
            found.search, found.settled = None, True
            log.warning("%s: the search for a better plan failed: %s", self.name, " ".join(str(error).split()))

    def _is_unsteady(self, form: CallForm) -> bool:
        """Whether the attributes of the model had too many values for another plan."""
        states = dict.fromkeys(known.attributes for known in self.known)
        if form.attributes in states or len(states) < MOST_STATES:
            return False
        name = first_difference(next(reversed(states)), form.attributes)
        self.warn_once(
            f"{name} has another value in each call, and a plan holds for one: calls run as they are, out of the "
            "budget's control; make it a buffer or an argument that is a tensor"
        )
        return True

    def _warn_of_what_is_left_out(self) -> None:
        if hooks := hooks_of(self.model):
            place, kind, _ = hooks[0]
            self.warn_once(
                f"found a {kind} on {f'module {place!r}' if place else 'the model'}: a plan has what hooks compute on "
                "tensors, but does not call them, so they print, count and store nothing"
            )
        if left := [*not_compared(attributes_of(self.model, self.loss))]:
            names = ", ".join(left[:3]) + (" ..." if len(left) > 3 else "")
            self.warn_once(
                f"{names} cannot be compared in each call, so a plan keeps the values that were there when it was "
                "made: make what changes a buffer or an argument"
            )
        if self.written:
            names = ", ".join(self.written[:3]) + (" ..." if len(self.written) > 3 else "")
            self.warn_once(
                f"the step sets {names}, which a plan does not: return the value, or make it a buffer if a later step "
                "reads it"
            )

    def _drop_oldest(self) -> None:
        if len(self.known) <= MOST_PROGRAMS:
            return
        self.known.popitem(last=False)
        self.warn_once(
            f"met more than {MOST_PROGRAMS} shapes of batches; each new one takes seconds to plan: pad "
            "batches to a few lengths"
        )

    def warn_once(self, message: str) -> None:
        if message not in self.reported:
            self.reported.add(message)
            log.warning("%s: %s", self.name, message)


def _enough(kept: Kept | None, settings: FitSettings, seconds: float) -> Kept | None:
    """`kept`, unless there is time to search for a better one."""
    if kept is not None and seconds >= settings.time_limit_s and not settled(kept[0], settings):
        return None
    return kept
