"""`treadle sketch`: propose, show, list, and what it says about bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from treadle.cli.main import run
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.sketch import Sketch

SAMPLES = Path(__file__).parent.parent / "probe" / "samples"


def test_list_names_every_shipped_sketch(capsys):
    assert run(["sketch", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == resources.names("sketches")
    assert run(["sketch", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["sketches"]}
    assert (rows["dgx2-sk-1"]["nodes"], rows["dgx2-sk-1"]["pieces"], rows["dgx2-sk-1"]["size"]) == (2, 2, "1M")


def test_new_writes_a_commented_sketch_that_plans(here, golden, capsys):
    order = ["--hardware", "ndv2", "--nodes", "2", "--collective", "allgather", "--size", "1MiB"]
    assert run(["sketch", "new", *order, "-o", "s.yaml"]) == 0
    assert "One NIC for 8 devices" in capsys.readouterr().out
    golden("documents/proposed-ndv2-2x8.sketch.yaml", Path("s.yaml").read_text())
    plan = ["plan", "collective", "allgather", "--hardware", "ndv2", "--nodes", "2", "--sketch", "s.yaml"]
    assert run([*plan, "--method", "milp", "-o", "p.json"]) == 0
    assert run(["check", "p.json", "--sketch", "s.yaml"]) == 0


def proposals_from(text: Path, costs: str, capsys) -> None:
    assert run(["profile", "import", str(text), "--costs-from", costs, "-o", "hw.json"]) == 0
    hardware = store.load("hw.json", Hardware)
    for nodes in ("1", "2", "3"):
        assert run(["sketch", "new", "--hardware", "hw.json", "--nodes", nodes, "-o", f"{nodes}.yaml"]) == 0
        assert run(["sketch", "show", f"{nodes}.yaml", "--hardware", "hw.json"]) == 0
        assert store.load(f"{nodes}.yaml", Sketch).num_nodes == int(nodes)
    assert f"3 nodes of {hardware.devices_per_node} devices" in capsys.readouterr().out


def test_the_way_from_topo_m_text_to_a_sketch(here, capsys):
    proposals_from(SAMPLES / "smi_new.txt", "ndv4", capsys)


def test_the_way_from_a_real_topo_m_text_to_a_sketch(here, data_dir, capsys):
    proposals_from(data_dir / "topologies" / "dgx1-v100x8.nvidia-smi-topo-m.txt", "dgx1", capsys)


def test_a_device_without_links_is_named(here, capsys):
    assert run(["profile", "import", str(SAMPLES / "smi_old.txt"), "--costs-from", "dgx1", "-o", "hw.json"]) == 0
    assert run(["sketch", "new", "--hardware", "hw.json", "-o", "s.yaml"]) == 2
    assert "found no path from device 0 to device 2 inside a node" in capsys.readouterr().err


def test_show_tells_links_ports_relays_and_symmetry(capsys):
    assert run(["sketch", "show", "ndv2-sk-1", "--hardware", "ndv2", "--nodes", "4"]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["inside", "nodes", "128", "128", "128", "nvlink"] in words
    assert ["between", "nodes", "12", "768", "12", "ib"] in words
    assert ["0-7", "0"] in words
    assert ["1", "16", "4,064", "transfers,", "2,064", "to", "decide"] in words


def test_show_json_counts_links_and_classes(capsys):
    assert run(["sketch", "show", "dgx2-sk-1", "--hardware", "dgx2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["links"]["across"] == {"kept": 16, "kinds": {"ib": 16}, "of": 512}
    assert facts["symmetry"] == {"choices": {"tied": 1892, "transfers": 29824}, "classes": 2, "maps": 2}
    assert facts["chunks"]["chunk"] == "512 KiB"
    assert facts["relays"]["1"] == [0, 1]


def test_show_draws_the_sketch(here, capsys):
    pytest.importorskip("matplotlib")
    assert run(["sketch", "show", "dgx2-sk-1", "--hardware", "dgx2", "-o", "s.svg"]) == 0
    text = Path("s.svg").read_text()
    assert text.startswith("<svg")
    assert "may cross nodes" in text
    assert run(["sketch", "show", "dgx2-sk-1", "--hardware", "dgx2", "-o", "t.svg"]) == 0
    assert Path("t.svg").read_text() == text


def test_a_large_machine_can_be_shown(here, capsys):
    assert run(["sketch", "new", "--hardware", "ndv5", "--nodes", "64", "-o", "s.yaml"]) == 0
    assert len(Path("s.yaml").read_text()) < 2000
    assert run(["sketch", "show", "s.yaml", "--hardware", "ndv5"]) == 0
    assert re.search(r"32256 +258048 +32256 ib", capsys.readouterr().out)


def test_a_taccl_file_is_shown_with_what_it_loses(here, capsys):
    raw = {
        "nnodes": 2,
        "intranode_sketch": {"strategy": "minmax"},
        "internode_sketch": {"strategy": "relay", "internode_conn": "direct-map"},
        "symmetry_offsets": [[8, 16]],
        "hyperparameters": {"input_chunkup": 1},
    }
    Path("sk3.json").write_text(json.dumps(raw))
    assert run(["sketch", "show", "sk3.json", "--hardware", "ndv2"]) == 0
    shown = capsys.readouterr()
    assert "sk3 on 2 nodes of 8 devices" in shown.out
    assert "sk3.json: intranode_sketch.strategy minmax" in shown.err


def test_profile_import_reads_a_taccl_topology(here, capsys):
    raw = {"name": "toy", "gpus_per_node": 4, "nics_per_node": 2, "alpha": 3, "node_betas_list": [5]}
    raw |= {"node_invbws_list": [8], "remote_alpha": 26, "remote_beta": 10, "remote_invbw": 36}
    Path("t.json").write_text(json.dumps(raw))
    assert run(["profile", "import", "t.json", "-o", "hw.json"]) == 2
    assert "expected --message-size" in capsys.readouterr().err
    assert run(["profile", "import", "t.json", "-o", "hw.json", "--message-size", "1K", "--cost-scale", "10"]) == 0
    assert "assumed" in capsys.readouterr().err
    found = store.load("hw.json", Hardware)
    assert (found.network.alpha_us, found.network.beta_us_per_MB) == (2.6, 1024)
    assert (found.switches[0].alpha_us, found.switches[0].beta_us_per_MB) == (0.3, 512)
    assert run(["sketch", "new", "--hardware", "hw.json", "--nodes", "2", "-o", "s.yaml"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "--hardware", "ring4", "--size", "0", "-o", "s.yaml"], "--size: found '0'"),
        (["new", "--hardware", "ring4", "--size", "fast", "-o", "s.yaml"], "--size: found 'fast'"),
        (["new", "--hardware", "ring4", "--nodes", "2", "-o", "s.yaml"], "has no network between nodes"),
        (["new", "--hardware", "nowhere", "-o", "s.yaml"], "nowhere"),
        (["show", "nothing", "--hardware", "ring4"], "not one of the shipped sketches"),
        (["show", "dgx2-sk-1", "--hardware", "ndv2"], "expected one below 8"),
        (["show", "dgx2-sk-1", "--hardware", "dgx2", "--nodes", "3"], "found a sketch for 2 nodes"),
        (["show", "mesh", "--hardware", "ring4", "--size", "x"], "--size"),
        (["shwo"], "did you mean"),
    ],
)
def test_bad_input_is_one_line(here, arguments, message, capsys):
    assert run(["sketch", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
