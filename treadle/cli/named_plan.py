"""A plan and the name under which processes find each other: `[NAME=]PLAN`."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from treadle.planner.documents.scalars import Decisions
from treadle.planner.errors import InputError

D = TypeVar("D", bound=Decisions)


def named_plan(text: str, kind: type[D], word: str) -> tuple[str, D]:
    """The name, by default that of the file up to a dot, and what its plan decided. `word`: what the name is called.
    Raises InputError for a plan of another pass and for what is no name, CheckFailed for a plan that fails its
    check."""
    from treadle.check.plan import require_accepted
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import Plan
    from treadle.planner.passes import require_pass
    from treadle.runtime.wire.greeting import NAMESPACE

    before, equals, after = text.partition("=")
    given = bool(equals) and NAMESPACE.fullmatch(before) is not None and not Path(text).exists()
    name, path = (before, after) if given else (Path(text).name.partition(".")[0], text)
    plan = require_pass(store.load(path, Plan), kind, path)
    require_accepted(plan, path)
    if not NAMESPACE.fullmatch(name):
        expected = f"letters, digits, '.', '_' or '-', up to 64; write {word.upper()}=PLAN"
        raise InputError(f"found {word} {name!r}, expected {expected}", where=path)
    return name, plan.decisions
