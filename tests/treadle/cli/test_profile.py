"""`treadle profile`: what it prints, what it writes, how it fails, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.cli.main import run
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.probe import measure as measuring
from treadle.probe.fit import LinkFit
from treadle.probe.measure import Measurement
from treadle.probe.resolve import load_hardware

SAMPLES = Path(__file__).parent.parent / "probe" / "samples"


def test_list_names_every_shipped_profile(capsys):
    assert run(["profile", "list"]) == 0
    table, costs, sparse, parts, models = capsys.readouterr().out.split("\n\n")
    lines = table.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*resources.names("profiles"), "local"]
    assert [line.split()[0] for line in costs.splitlines()[2:]] == resources.names("profiles/compression")
    assert [line.split()[0] for line in sparse.splitlines()[2:]] == resources.names("profiles/sparse")
    assert [line.split()[0] for line in parts.splitlines()[2:]] == resources.names("profiles/server")
    assert [line.split()[0] for line in models.splitlines()[2:]] == resources.names("profiles/index")
    assert next(line.split()[1] for line in lines if line.startswith("slow-nic")) == "4"
    assert run(["profile", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["compression"] == resources.names("profiles/compression")
    assert listed["sparse"] == resources.names("profiles/sparse")
    assert listed["server"] == resources.names("profiles/server")
    assert listed["index"] == resources.names("profiles/index")
    summaries = listed["profiles"]
    assert [summary["name"] for summary in summaries] == resources.names("profiles")
    ndv2 = next(summary for summary in summaries if summary["name"] == "ndv2")
    assert (ndv2["devices_per_node"], ndv2["links"], ndv2["nics"], ndv2["pcie_switches"]) == (8, 48, 1, 4)


def test_show_tells_costs_and_sources(capsys):
    assert run(["profile", "show", "ndv2", "--nodes", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ndv2: 2 nodes of 8 devices\n")
    words = [line.split() for line in out.splitlines()]
    assert ["nvlink", "16", "1", "0.7", "us", "46", "us/MiB", "22.8", "GB/s"] in words
    assert ["nvlink", "16", "2", "0.7", "us", "23", "us/MiB", "45.59", "GB/s"] in words
    assert ["ib", "1.7", "us", "106", "us/MiB", "9.892", "GB/s"] in words
    assert ["ib0", "0-7", "pcie0", "no", "100"] in words
    assert "TACCL, Table 5.1" in out
    assert not any(line.endswith(" ") for line in out.splitlines())


@pytest.mark.parametrize("name", [*resources.names("profiles"), "local"])
def test_every_profile_can_be_shown(name, capsys):
    assert run(["profile", "show", name]) == 0
    assert f"{name}: " in capsys.readouterr().out


def test_show_prints_costs_of_compression_with_their_sources(capsys):
    assert run(["profile", "show", "v100"]) == 0
    out = capsys.readouterr().out
    assert "1,048,576: 400 us, 16,777,216: 6.4 ms" in out
    assert "Cupcake, section 5.2" in out
    assert run(["profile", "show", "v100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["costs"]["name"] == "v100"
    assert run(["profile", "show", "v100", "--nodes", "2"]) == 2
    assert "--nodes: found costs of gradient compression" in capsys.readouterr().err


def test_show_json_has_the_whole_document(capsys):
    assert run(["profile", "show", "dgx2", "--nodes", "4", "--json"]) == 0
    shown = store.loads(json.dumps(json.loads(capsys.readouterr().out)["hardware"]), "stdout", Hardware)
    assert shown == load_hardware("dgx2", 4)


def test_show_svg_writes_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert run(["profile", "show", "ring4", "--svg", str(tmp_path / "ring.svg")]) == 0
    assert (tmp_path / "ring.svg").read_text().startswith("<svg")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"wrote {tmp_path / 'ring.svg'}\n"


def test_names_that_rich_would_take_for_markup_are_shown_as_they_are(tmp_path, capsys):
    raw = json.loads(store.dumps(load_hardware("ring4")))
    raw["name"] = "[bold]:ab:[/nope]"
    (tmp_path / "odd.json").write_text(json.dumps(raw))
    assert run(["profile", "show", str(tmp_path / "odd.json")]) == 0
    assert capsys.readouterr().out.startswith("[bold]:ab:[/nope]: 1 node of 4 devices")


def test_import_writes_a_profile_that_says_what_is_missing(tmp_path, capsys):
    out = tmp_path / "hw.json"
    assert run(["profile", "import", str(SAMPLES / "rccl_dump_xgmi.xml"), "-o", str(out), "--name", "mine"]) == 0
    captured = capsys.readouterr()
    assert "2 x gfx942, 2 xgmi, 1 NIC\n" in captured.err
    assert "--costs-from" in captured.err
    assert store.load(out, Hardware).name == "mine"


def test_import_with_costs_from_another_profile(tmp_path, capsys):
    out = tmp_path / "hw.json"
    file = str(SAMPLES / "rccl_dump_xgmi.xml")
    assert run(["profile", "import", file, "-o", str(out), "--costs-from", "mi300x", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["links"] == 2
    assert captured.err == ""
    assert {link.alpha_us for link in store.load(out, Hardware).links} == {0.7}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "ndv3"], "error: ndv3: no such file, and not one of the shipped profiles"),
        (["show", "ring4", "--nodes", "2"], "error: --nodes: profile 'ring4' has no network between nodes"),
        (["show", "ring4", "--nodes", "0"], "error: Invalid value for '--nodes'"),
        (["import", "nowhere.xml", "-o", "x"], "error: nowhere.xml: cannot read: No such file or directory"),
        (["import", str(SAMPLES / "smi_old.txt")], "error: Missing option '-o'"),
        (["measure", "--world", "0"], "error: --world: found 0, expected 1 to"),
        (["measure", "--sizes", "many"], "error: --sizes: found 'many', expected a size"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["profile", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_measure_writes_the_profile_and_records_its_own_command(tmp_path, capsys, monkeypatch):
    asked = {}

    def fake(world, sizes, *, command, on_step):
        asked.update(world=world, sizes=sizes, command=command)
        on_step(1, 2)
        return Measurement(
            load_hardware("cpu-2x2"), {"loopback": LinkFit(80.0, 370.0, 0.1, (70.0, 90.0), (360.0, 380.0))}
        )

    monkeypatch.setattr(measuring, "measure", fake)
    out = tmp_path / "hw.yaml"
    assert run(["profile", "measure", "--world", "4", "--sizes", "4K,1M", "-o", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    assert printed["fits"]["loopback"]["beta_interval"] == [360.0, 380.0]
    assert printed["hardware"]["name"] == "cpu-2x2"
    assert asked == {"world": 4, "sizes": (4096, 1 << 20), "command": "treadle profile measure --world 4 --sizes 4K,1M"}
    assert store.load(out, Hardware) == load_hardware("cpu-2x2")
    assert captured.err == f"wrote {out}\n"  # no progress bar off a terminal
    assert run(["profile", "measure"]) == 0
    assert "70 to 90" in capsys.readouterr().out


LOOKING = [
    ["list"], ["show", "ndv2"], ["import", str(SAMPLES / "lstopo_v2.xml"), "-o", "hw.json"], ["measure", "--help"],
]  # fmt: skip


def test_looking_at_profiles_imports_no_framework_no_solver_and_no_plotting(tmp_path):
    script = (
        "import sys; from treadle.cli.main import run;"
        f"codes = [run(['profile', *each]) for each in {LOOKING}];"
        "heavy = {'torch', 'ortools', 'matplotlib'} & set(sys.modules);"
        "sys.exit(f'{codes} {heavy}' if any(codes) or heavy else 0)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
