"""`treadle run` for index plans: the generated header compiled, the trace subset on it, every answer compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.cli.output import live_line, print_run
from treadle.codegen import emit
from treadle.codegen.index.header import C_FUNCTIONS, HEADER
from treadle.codegen.index.program import index_program
from treadle.codegen.targets import PLAN_NAME
from treadle.passes.index.words import mix_words, times
from treadle.passes.interface import RunOptions
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.index.configurations import name_of_leaves
from treadle.planner.passes.index.decisions import IndexDecisions


def run_index(folder: Path, options: RunOptions) -> None:
    """Compile what was generated, run the trace subset on it, and print what was found. Raises InputError for another
    back end, for edited texts, and where a file of the workload is missing or another one."""
    if options.backend != "cpu":
        raise InputError(f"found {options.backend}, expected cpu: an index runs on one core", where="--backend")
    options.require_world((None, 1), "an index runs in this process")
    _, texts = emit.read(folder)
    file = folder / PLAN_NAME
    plan = require_pass(store.load(file, Plan), IndexDecisions, str(file))
    expected = index_program(plan).files
    for name, text in expected.items():  # whoever wrote the folder wrote its manifest: only our own text is compiled
        if texts.get(name) != text:
            raise InputError(
                "found another text than treadle makes of the plan; generate again", where=str(folder / name)
            )
    found = found_by_run(plan.decisions, expected, file)
    print_run("run-index", folder, found, [*run_lines(found, plan.decisions)], options.as_json)


def found_by_run(decisions: IndexDecisions, texts: dict[str, str], plan_file: Path) -> dict[str, Any]:
    """Answers compared and times measured, next to those of the plan; `texts` are the generated files."""
    from treadle.passes.index.comparing import wrong_answers
    from treadle.passes.index.inputs import workload_of
    from treadle.passes.index.measuring import WINDOWS
    from treadle.runtime.index.learned_index import LearnedIndex
    from treadle.runtime.index.library import load_library
    from treadle.runtime.index.measure import measured

    problem = decisions.problem
    workload = workload_of(problem, plan_file)
    library = load_library({name: texts[name] for name in (HEADER, C_FUNCTIONS)})
    share = problem.insert_share
    with live_line() as show, LearnedIndex(decisions.chosen, insert_share=share, library=library) as index:
        index.load(workload.keys, workload.payloads)
        findings = wrong_answers(
            index, workload, lambda count: show(f"compared {count} of {many(problem.operations, 'answer')}")
        )
    timed = measured(
        decisions.chosen,
        workload,
        windows=WINDOWS,
        insert_share=share,
        library=library,
    )
    return {
        "leaves": name_of_leaves(decisions.chosen),
        "bulk": problem.bulk,
        "operations": problem.operations,
        "compared": problem.operations,
        "time_ns": {"planned": decisions.time_ns, "measured": timed.time_ns},
        "load_ns": timed.load_ns,
        "windows_ns": [*timed.windows_ns],
        "bytes": {"planned": decisions.bytes, "measured": timed.bytes},
        "findings": findings,
    }


def run_lines(found: dict[str, Any], decisions: IndexDecisions) -> Iterator[str]:
    """What the run found, for people."""
    problem, spent, sizes = decisions.problem, found["time_ns"], found["bytes"]
    loaded = f"{many(problem.bulk, 'key')} loaded in {format_time(found['load_ns'])}"
    yield f"{found['leaves']}: {loaded}, {mix_words(problem)}"
    same = "as those of a dictionary" if not found["findings"] else "not those of a dictionary"
    yield f"  answers    {found['compared']} compared, {same}"
    each = {name: time / problem.operations for name, time in spent.items()}
    off = times(spent["measured"], spent["planned"])
    yield f"  operation  {each['planned']:.4g} ns planned, {each['measured']:.4g} ns measured, {off}"
    planned = "not measured when planned" if sizes["planned"] is None else f"{format_bytes(sizes['planned'])} planned"
    yield f"  memory     {planned}, {format_bytes(sizes['measured'])} measured"
