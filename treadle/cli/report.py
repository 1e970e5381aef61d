"""`treadle report`: plans as one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.json_output import print_json
from treadle.cli.options import Json, Nodes, hardware_option, written
from treadle.cli.output import note, printable
from treadle.planner.documents.overwrite import require_replaceable
from treadle.planner.documents.scalars import many


def command(
    *,
    plans: Annotated[list[str], typer.Argument(metavar="PLAN", help="Plans and selections.")],
    output: Annotated[
        str,
        written(
            "-o",
            "--output",
            kind="page",
            endings=(".html", ".htm", ".svg"),
            help="HTML, or of one plan its picture as SVG.",
        ),
    ],
    hardware: Annotated[str | None, hardware_option("Draw the collectives on this machine.")] = None,
    nodes: Nodes = None,
    as_json: Json = False,
) -> None:
    """Write plans and selections as one HTML page: curves, timelines, certificates, times over size.

    Memory plans of one problem at several budgets also get a curve of time over bytes. The file -o with the ending
    .perfetto.json has the predicted timelines of all plans, for ui.perfetto.dev.
    """
    import msgspec

    from treadle.check.plan import require_accepted
    from treadle.check.selection import plans_of, require_told
    from treadle.passes.collective.selection_section import selection_cards, selection_section
    from treadle.planner.documents.files import write_text
    from treadle.planner.documents.plan import Plan
    from treadle.planner.documents.selection import Selection
    from treadle.planner.documents.store import load_any
    from treadle.planner.errors import InputError
    from treadle.report.page import Page, render
    from treadle.report.sections import certificate_sections, glance, plan_cards, plan_section, sections_together
    from treadle.report.timelines import ENDING, timelines, timelines_file
    from treadle.report.trust import trust_sections

    timeline = timelines_file(output)
    skipped = [path for path in plans if path.endswith((".svg", ".csv", ENDING))]
    if skipped:
        note(f"passed over {', '.join(skipped)}: no plan")
    plans = [path for path in plans if path not in skipped]
    if not output.endswith(".svg"):
        require_replaceable(timeline, "timeline", [*plans, hardware])
    if not plans:
        raise InputError("found no plan, expected files of plans, such as DIR/*.json", where=skipped[0])
    names = {path: _short(Path(path).name) for path in plans}
    if len(set(names.values())) < len(names):
        names = {path: _short(path) for path in plans}
    loaded: dict[str, Plan] = {}
    selections: dict[str, Selection] = {}
    for path, name in names.items():
        document = load_any(path)
        if isinstance(document, Selection):
            chosen = plans_of(document, path)
            require_told(document, chosen, path)
            selections[name] = document
            loaded |= {f"{name}: {file}" if len(names) > 1 else file: plan for file, plan in chosen.items()}
        elif isinstance(document, Plan):
            require_accepted(document, path)
            loaded[name] = document
        else:
            kind = document.__struct_config__.tag
            raise InputError(f"found {kind!r}, expected a plan or a selection", where=path, path="$.kind")
    machine = None
    if hardware is not None:
        from treadle.probe.resolve import load_hardware

        machine = load_hardware(hardware, nodes)
    one = len(names) == 1
    pictured = [
        plan_section("" if one else name, plan, machine) for name, plan in loaded.items() if name in names.values()
    ]
    drawn = Path(output).suffix == ".svg"
    if drawn:
        if len(pictured) != 1 or selections:
            raise InputError(f"found {many(len(names), 'document')}, expected one plan for one picture", where=output)
        write_text(output, pictured[0].pictures[0].svg)
    else:
        proofs = "Every plan was checked for this page by code that did not make it."
        selected = [selection_cards(selection) for selection in selections.values()]
        cards = (selected or [plan_cards(plan, machine) for plan in loaded.values()])[0] if one else ()
        page = Page(
            title=", ".join(names.values()) if len(names) <= MOST_NAMED else many(len(names), "plan"),
            subtitle="What treadle plans to do, what it predicts, and how that was checked.",
            cards=cards,
            sections=(
                *(() if cards else glance(loaded)),
                *(selection_section("" if one else name, selection) for name, selection in selections.items()),
                *sections_together(loaded),
                *pictured,
                *trust_sections(loaded),
                *certificate_sections(loaded, {}, proofs),
            ),
            timeline=timeline.name,
        )
        text = render(page)
        write_text(timeline, timelines(loaded))
        write_text(output, text)
    if as_json:
        facts = {name: msgspec.to_builtins(plan.certificate) for name, plan in loaded.items()}
        files = {"report": output} if drawn else {"report": output, "timelines": str(timeline)}
        print_json("report", {**files, "certificates": facts})
    else:
        typer.echo(f"wrote {output}" if drawn else f"wrote {output} and {timeline}")


MOST_NAMED = 3
"""Plans that the title of a page names."""


def _short(name: str) -> str:
    return printable(name.removesuffix(".json").removesuffix(".plan"))
