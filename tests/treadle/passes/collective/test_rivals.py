"""What is said of NCCL beside our plans: in the selection, in both tables, and for one plan."""

from __future__ import annotations

import json
from html import unescape

import pytest

from treadle.cli.main import run
from treadle.passes.collective.rivals import ahead, rivals_table
from treadle.planner.documents import store
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.selection import Entry, NcclRange, Selection


@pytest.fixture
def rings(here, capsys):
    given = ["--hardware", "ring4", "--sizes", "1K,64K", "--method", "ring", "--instances", "1", "-o", "many"]
    assert run(["plan", "collective", "allreduce", *given]) == 0
    return capsys.readouterr().out


def test_a_sweep_has_nccl_beside_it(here, rings, capsys):
    selection = store.load("many/selection.json", Selection)
    assert selection.rivals[0].min_bytes == 0
    starts = {rival.min_bytes for rival in selection.rivals}
    assert {entry.min_bytes for entry in selection.entries} <= starts
    assert (selection.compared[0].min_bytes, selection.compared[-1].max_bytes) == (1024, 65536)
    assert "NCCL's own algorithms, by its model of itself" in rings
    assert " ".join(ahead(selection).split()) in " ".join(rings.split())
    assert run(["report", "many/selection.json", "-o", "page.html"]) == 0
    assert f"by its model of itself: {ahead(selection)}." in unescape((here / "page.html").read_text())


@pytest.mark.parametrize("forged", [{"algorithm": "pat"}, {"time_us": [1.0, 1.0]}, {"plan_us": [1.0, 1.0]}])
def test_a_forged_rival_is_rejected(here, rings, forged, capsys):
    raw = json.loads((here / "many/selection.json").read_text())
    place = next(index for index, rival in enumerate(raw["rivals"]) if "plan_us" in rival)
    raw["rivals"][place] |= forged
    (here / "many/selection.json").write_text(json.dumps(raw))
    assert run(["check", "--fresh", "many/selection.json"]) == 1
    assert "rivals" in capsys.readouterr().out


@pytest.mark.parametrize(("last", "path"), [(1000, "$.rivals[1].min_bytes"), (3000, "$.rivals[1].min_bytes")])
def test_holes_between_ranges_are_refused(here, rings, last, path, capsys):
    raw = json.loads((here / "many/selection.json").read_text())
    raw["rivals"][0]["max_bytes"] = last
    (here / "many/selection.json").write_text(json.dumps(raw))
    assert run(["check", "many/selection.json"]) == 2
    assert path in capsys.readouterr().err


def test_one_plan_is_compared_too(here, capsys):
    given = ["plan", "collective", "allreduce", "--hardware", "ring4", "--size", "64K", "--method", "ring"]
    assert run([*given, "-o", "a.plan.json"]) == 0
    out = capsys.readouterr().out
    assert "NCCL's best is ring LL on 4 channels" in out
    assert "not fitted to this machine" in out
    assert run([*given, "-o", "b.plan.json", "--json"]) == 0
    times = json.loads(capsys.readouterr().out)["nccl_us"]
    assert min(times, key=lambda method: times[method]) == "ring LL"
    assert len(times) == 6


def selection(*pairs: tuple[tuple[float, float], tuple[float, float]], fitted: bool = False) -> Selection:
    plan = InputRef(file="a.plan.json", digest="sha256:" + "0" * 64)
    entry = Entry(min_bytes=1, max_bytes=1024, plan=plan, method="ring", protocol="LL", instances=1,
                  predicted_us=(1, 1), bound_us=(1, 1))  # fmt: skip
    rivals = tuple(
        NcclRange(min_bytes=1024 * place, max_bytes=1024 * place + 1023, algorithm="ring", protocol="LL",
                  channels=(1, 1), time_us=nccl, plan_us=plan_us)
        for place, (nccl, plan_us) in enumerate(pairs)
    )  # fmt: skip
    return Selection(version=1, collective="allreduce", ranks=4, nodes=1, tolerance=0.05, sizes=(1,), inputs={},
                     entries=(entry,), rivals_fitted=fitted, rivals=rivals)  # fmt: skip


def test_where_nccl_is_ahead_is_said():
    slower, faster = ((2.0, 2.0), (1.0, 1.0)), ((1.0, 3.0), (2.0, 2.0))
    assert ahead(selection(slower, slower, fitted=True)) == (
        "our programs take no longer than NCCL's best, at the ends of all ranges"
    )
    text = ahead(selection(faster, faster, slower, faster))
    assert "for 0 B to 1.999 KiB and 3 KiB to 3.999 KiB (its model is not fitted" in text
    assert rivals_table(selection()) == ()
