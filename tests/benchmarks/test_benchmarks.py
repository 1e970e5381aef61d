"""The benchmarks print their tables, and their hand-made peers are correct."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import FOLDERS, NAMES, main
from benchmarks.collective import machines
from benchmarks.collective.quality import peers
from benchmarks.common import Table, show
from treadle.planner.passes.collective.universal import universal_bound


def test_every_file_is_a_benchmark_that_is_listed():
    root = Path(import_module("benchmarks").__path__[0])
    modules = [path for path in root.rglob("[!_]*.py") if "\ndef tables(" in path.read_text()]
    assert {".".join(path.relative_to(root).with_suffix("").parts) for path in modules} == set(NAMES)
    listed = CliRunner().invoke(main, ["--list"]).output
    assert all(name in listed for name in NAMES)


def test_a_folder_runs_all_its_benchmarks(monkeypatch):
    ran = []
    for name in NAMES:
        monkeypatch.setattr(import_module(f"benchmarks.{name}"), "tables", lambda name=name: ran.append(name) or ())
    assert CliRunner().invoke(main, ["timeline", "swap", "--json"]).exit_code == 0
    assert ran == ["timeline", *(name for name in NAMES if name.startswith("swap."))]


PAGES = [path for path in Path(__file__).parents[2].rglob("*.md") if ".venv" not in path.parts]


def test_every_benchmark_that_a_page_names_exists():
    commands = [words for page in PAGES for words in re.findall(r"python -m benchmarks[ .]([\w. ]+)", page.read_text())]
    assert len(commands) > 20
    root = Path(import_module("benchmarks").__path__[0])
    programs = [path for path in root.rglob("[!_]*.py") if "__main__" in path.read_text()]
    alone = {".".join(path.relative_to(root).with_suffix("").parts) for path in programs}
    assert {name for words in commands for name in words.split()} <= {*NAMES, *FOLDERS, *alone}


def test_an_unknown_benchmark_is_refused():
    result = CliRunner().invoke(main, ["nothing"])
    assert result.exit_code == 2
    assert "'nothing'" in result.output


def test_tables_and_json_show_the_same_rows(capsys):
    table = Table("title", [{"name": "a", "ratio": 1.25}, {"name": "b"}], ("a note",))
    show([table], as_json=False)
    printed = capsys.readouterr().out
    assert "1.250" in printed
    assert "a note" in printed
    show([table], as_json=True)
    assert json.loads(capsys.readouterr().out)["tables"] == [
        {"title": "title", "rows": table.rows, "notes": ["a note"]}
    ]


def test_planning_benchmarks_start_without_torch():
    names = "benchmarks.memory.planning, benchmarks.collective.quality, benchmarks.swap.evaluation"
    code = f"import {names}, sys; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_peers_of_plans_are_what_they_say():
    """A ring moves 15 of 16 chunks of 1 MiB over each InfiniBand link, at 1.7 + 106 us each; two halves do better."""
    found = peers("allgather", "ndv2", 2**20)
    assert found["ring"] <= 15 * 107.7
    assert found["ring"] >= 8 * 107.7
    assert "binomial" not in found


def test_the_machines_of_the_table_have_the_published_bounds():
    """25, 16.67 and 129.03 GB/s for allgather, 3.125 and 12.5 for alltoall (TE-CCL's speeds)."""
    for hardware, sketch, collective, size, speed in (
        (machines.ndv2(2), machines.EVERY_LINK, "allgather", 10**9, 25.0),
        (machines.ndv2(4), machines.EVERY_LINK, "allgather", 10**9, 16.667),
        (machines.dgx2(2), machines.ODD_TO_EVEN, "allgather", 10**9, 129.03),
        (machines.ndv2(2), machines.EVERY_LINK, "alltoall", 10**9, 3.125),
        (machines.dgx2(2), machines.EVERY_LINK, "alltoall", 10**9, 12.5),
    ):
        ranks = hardware.nodes * hardware.devices_per_node
        part = -(-size // ranks) if collective == "allgather" else size
        bound = universal_bound(collective, hardware, sketch, part)
        assert size / bound.time_ns == pytest.approx(speed, rel=1e-3)
