"""`treadle report`: plans as one self-contained page."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.cli.output import json_option, print_json, require_apart


@click.command()
@click.argument("plans", nargs=-1, required=True, metavar="PLAN...")
@click.option("-o", "--output", required=True, metavar="FILE", help="The HTML file to write.")
@click.option("--hardware", metavar="NAME|FILE", help="Draw the collectives on this machine.")
@click.option("--nodes", type=click.IntRange(min=1), help="Number of nodes of the hardware.")
@json_option
def command(plans: tuple[str, ...], output: str, hardware: str | None, nodes: int | None, as_json: bool) -> None:
    """Write plans as one HTML page: curves, timelines, certificates."""
    import msgspec

    from planner.documents import load
    from planner.files import write_text
    from planner.plan import Plan
    from treadle.checking import require_accepted
    from treadle.report.page import Page, Section, render
    from treadle.report.sections import certificates, inputs_table, plan_section

    require_apart(output, *plans, hardware)
    names = {path: Path(path).name.removesuffix(".json") for path in plans}
    if len(set(names.values())) < len(names):
        names = {path: path.removesuffix(".json") for path in plans}
    loaded = {name: load(path, Plan) for path, name in names.items()}
    for path, name in names.items():
        require_accepted(loaded[name], path)
    machine = None
    if hardware is not None:
        from treadle.probe.resolve import load_hardware

        machine = load_hardware(hardware, nodes)
    sections = [plan_section(name, plan, machine) for name, plan in loaded.items()]
    sections.append(
        Section(
            "Certificates",
            "Every plan was checked for this page by code that did not make it.",
            (certificates(loaded),),
        )
    )
    sections.append(Section("Provenance", "What each plan was made from.", (inputs_table(loaded),)))
    page = Page(title="treadle report", subtitle=", ".join(loaded), sections=tuple(sections))
    write_text(output, render(page))
    if as_json:
        facts = {name: msgspec.to_builtins(plan.certificate) for name, plan in loaded.items()}
        print_json({"report": output, "certificates": facts})
    else:
        click.echo(f"wrote {output}")
