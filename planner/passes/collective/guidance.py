"""Which wishes of a sketch a method did not look at, so that a plan can say so.

Every method uses the links, ports and batches that a sketch leaves. Relays, symmetry, switch policies and orders are
followed by the MILP alone, limits also by the exact search; pieces are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treadle.planner.documents.sketch import Order, Sketch, TimeLimits
from treadle.planner.passes.collective.synthesis import Draft

GUIDED = "milp"
LIMITED = (GUIDED, "exact")


def not_followed(name: str, draft: Draft, sketch: Sketch) -> dict[str, Any]:
    """For `Draft.options`: {"not_followed": words} where the method `name` passed over what `sketch` sets, else {}."""
    words = [] if name == GUIDED else list(_passed_over(name, draft, sketch))
    return {"not_followed": words} if words else {}


def _passed_over(name: str, draft: Draft, sketch: Sketch) -> Iterator[str]:
    across = sketch.internode_sketch
    if across is not None and (across.chunk_to_relay_map is not None or across.gpus_to_sender_rev_map):
        yield "relays"
    if sketch.symmetry_offsets or sketch.symmetries:
        yield "symmetry"
    if {"uc-min", "uc-max"} & set(sketch.intranode_sketch.switch_hyperedge_strategy):
        yield "policy"
    asked = sketch.hyperparameters.input_chunkup
    if asked > 1 and (draft.problem.chunkup != asked or draft.problem.roots is not None):
        yield "chunkup"
    if sketch.order != Order():
        yield "order"
    if sketch.time_limit_s != TimeLimits() and name not in LIMITED:
        yield "limits"
