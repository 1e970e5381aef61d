"""An index plan as C++: one header with the chosen leaves as its default, a program that uses it, C functions."""

from __future__ import annotations

from treadle.codegen.index.header import library_texts
from treadle.codegen.interface import Made
from treadle.codegen.templates import template
from treadle.planner import resources
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.index.configurations import name_of_leaves
from treadle.planner.passes.index.decisions import IndexDecisions


def index_program(plan: Plan[IndexDecisions]) -> Made:
    """The header, `example.cpp` and `Makefile`, and a library for other languages than C++."""
    decisions = plan.decisions
    problem = decisions.problem
    example = template("index/example.cpp.j2").render(
        name=problem.name,
        leaves=name_of_leaves(decisions.chosen),
        inserts=problem.inserts,
        operations=problem.operations,
    )
    makefile = resources.folder("templates") / "index" / "Makefile"
    files = {
        **library_texts(decisions.chosen),
        "example.cpp": example,
        "Makefile": makefile.read_text(encoding="utf-8"),
    }
    facts = {
        "leaves": name_of_leaves(decisions.chosen),
        "planned_ns": decisions.time_ns,
        "operations": problem.operations,
        "bytes": decisions.bytes,
    }
    return Made(files, facts)
