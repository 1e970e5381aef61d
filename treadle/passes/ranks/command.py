"""`treadle plan ranks`: which host gets which ranks of a collective."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.options import document_option


def command(
    *,
    problem: Annotated[str, typer.Option(metavar="FILE", help="A problem written by hand.")],
    output: Annotated[str, document_option("plan", "The plan to write.")],
) -> None:
    """Order hosts so that an unmodified collective is fast."""
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import InputRef
    from treadle.planner.passes.ranks.planning import plan_ranks
    from treadle.planner.passes.ranks.problem import RanksProblem

    given = store.load(problem, RanksProblem)
    plan = plan_ranks(given, inputs={"problem": InputRef(file=Path(problem).name, digest=store.digest(given))})
    store.save(plan, output)
    typer.echo(f"wrote {output}")
