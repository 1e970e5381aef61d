"""`treadle plan collective` from end to end, in the caller's folder."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests.codegen.collective.test_simulate_cpu import COSTS
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.transports import Transports
from treadle.planner.passes.collective.check import check, check_against_inputs
from treadle.planner.passes.collective.planning import METHODS
from treadle.probe.resolve import load_hardware


@pytest.mark.parametrize(
    ("collective", "hardware", "sketch"),
    [
        *((name, "cpu-2x2", "cpu-2x2-relay") for name in ("allgather", "reducescatter", "allreduce", "reduce")),
        ("broadcast", "ring4", "ring"),
        ("alltoall", "mesh4", "mesh"),
    ],
)
def test_plans_are_written_and_pass_their_check(here, collective, hardware, sketch, capsys):
    arguments = ["plan", "collective", collective, "--hardware", hardware, "--sketch", sketch, "--size", "16KiB"]
    assert run([*arguments, "-o", "plan.json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "lower bound" in out
    assert "wrote plan.json" in out
    plan = store.load("plan.json", Plan)
    assert check(plan.decisions) == []
    assert plan.inputs["hardware"].file == hardware
    assert list(here.iterdir()) == [here / "plan.json"]


def plan_on_ring(*arguments: str) -> int:
    return run(["plan", "collective", *arguments, "--hardware", "ring4", "-o", "plan.json"])


def test_json_tells_the_stages(here, capsys):
    assert plan_on_ring("allgather", "--sketch", "ring", "--size", "1MiB", "--method", "milp", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["t1_us"], facts["t2_us"], facts["t3_us"], facts["lower_bound_us"]) == (15.0, 15.0, 15.0, 15.0)
    assert facts["optimal"] is True
    assert facts["transfers"] == 24
    assert facts["algorithm_bandwidth_GBps"] == pytest.approx(2**20 / facts["time_us"] / 1e3)


def test_both_times_are_named(here, capsys):
    """The program's time, with what it was simulated on, and the schedule's, to which the bound applies."""
    arguments = ("allgather", "--sketch", "ring", "--size", "1MiB", "--method", "ring")
    assert plan_on_ring(*arguments) == 0
    out = capsys.readouterr().out
    assert "us, program simulated on GPUs: " in out
    assert "  schedule     15.000 us in the alpha-beta model, lower bound" in out
    assert plan_on_ring(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["simulated_on"] == "gpu"

    bare = load_hardware("hosts-2x2", None)
    (here / "bare.json").write_text(store.dumps(bare))
    (here / "fitted.json").write_text(store.dumps(replace(bare, transports=Transports(cpu=COSTS))))
    for name, simulated_on, words in (("bare", "links", "links and ports"), ("fitted", "cpu", "the CPU runtime")):
        command = [
            "plan",
            "collective",
            "allgather",
            "--hardware",
            f"{name}.json",
            "--size",
            "1MiB",
            "--method",
            "ring",
        ]
        assert run([*command, "-o", f"{name}.plan.json", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["simulated_on"] == simulated_on
        assert run([*command, "-o", f"{name}.plan.json"]) == 0
        assert f"program simulated on {words}: " in capsys.readouterr().out


FREE = {"kind": "sketch", "version": 1, "name": "free", "intranode_sketch": {"strategy": "direct"},
        "symmetry_offsets": [[1, 4]], "hyperparameters": {"input_chunkup": 3}}  # fmt: skip


@pytest.mark.parametrize(("method", "reported"), [("greedy", True), ("milp", False)])
def test_wishes_of_a_sketch_that_are_not_followed_are_told(here, method, reported, capsys):
    (here / "free.json").write_text(json.dumps(FREE))
    arguments = ("allgather", "--sketch", "free.json", "--size", "1MiB", "--method", method)
    assert plan_on_ring(*arguments) == 0
    line = "  not followed by greedy: symmetry, chunkup; --method milp follows them\n"
    assert (line in capsys.readouterr().out) is reported
    assert plan_on_ring(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["not_followed"] == (["symmetry", "chunkup"] if reported else [])


def test_methods_skipped_for_one_reason_share_a_line(here, capsys):
    assert plan_on_ring("alltoall", "--sketch", "mesh", "--size", "1MiB") == 0
    out = capsys.readouterr().out
    skipped = store.load("plan.json", Plan).provenance.options["skipped"]
    assert len(set(skipped.values())) < len(skipped)
    assert out.count("  skipped: ") == len(set(skipped.values()))
    assert all(name in out for name in skipped)
    assert max(len(line) for line in out[out.index("  skipped: ") :].splitlines()) <= 120


def test_a_plan_fits_the_inputs_it_names(here):
    sketch = {"kind": "sketch", "version": 1, "name": "mine", "intranode_sketch": {"strategy": "direct"}}
    (here / "mine.json").write_text(json.dumps(sketch))
    assert plan_on_ring("allreduce", "--sketch", "mine.json", "--size", "1001") == 0
    plan = store.load("plan.json", Plan)
    guide = store.load(plan.inputs["sketch"].file, Sketch)
    assert store.digest(guide) == plan.inputs["sketch"].digest
    assert check_against_inputs(plan.decisions, load_hardware(plan.inputs["hardware"].file), guide) == []
    assert plan.decisions.chunk_bytes == 251


def machine(devices: int) -> dict[str, object]:
    """A machine whose first two devices are linked and no others."""
    pairs = [{"src": a, "dst": 1 - a, "kind": "link", "alpha_us": 1, "beta_us_per_MB": 8} for a in (0, 1)]
    toys = [{"model": "toy", "kind": "gpu", "count": devices}]
    return {"kind": "hardware", "version": 1, "name": "lonely", "nodes": 1, "devices": toys, "links": pairs}


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (3, "rank 0 cannot reach rank 2 over the links that the sketch leaves of profile 'lonely'; add links"),
        (10**9, "error: machine.json: $.devices: found 1000000000 devices in one node, expected at most 1024"),
    ],
)
def test_the_hardware_at_fault_is_named(here, devices, message, capsys):
    (here / "machine.json").write_text(json.dumps(machine(devices)))
    arguments = ["--hardware", "machine.json", "--sketch", "mesh", "--size", "1K", "-o", "plan.json"]
    assert run(["plan", "collective", "allgather", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_one_rank_is_no_ranks(here, capsys):
    (here / "machine.json").write_text(json.dumps({**machine(1), "links": []}))
    arguments = ["--hardware", "machine.json", "--sketch", "mesh", "--size", "1K", "-o", "plan.json"]
    assert run(["plan", "collective", "allgather", *arguments]) == 0
    assert capsys.readouterr().out.startswith("allgather on 1 rank, ")
    assert run(["check", "plan.json"]) == 0
    assert "(allgather plan of 1 rank; optimal)" in capsys.readouterr().out


def test_more_chunks_than_can_be_followed_are_refused_at_once(here, capsys):
    many = {"kind": "sketch", "version": 1, "name": "many", "intranode_sketch": {"strategy": "direct"},
            "hyperparameters": {"input_chunkup": 10**9}}  # fmt: skip
    (here / "many.json").write_text(json.dumps(many))
    assert plan_on_ring("allgather", "--sketch", "many.json", "--size", "1T") == 2
    assert "$.hyperparameters.input_chunkup: found 1000000000, expected at most 65536" in capsys.readouterr().err
    assert plan_on_ring("allgather", "--sketch", "ring", "--size", "1K") == 0
    whole = json.loads((here / "plan.json").read_text())
    for field, most in (("ranks", "a whole number of at most 1024"), ("chunkup", "at most 65536")):
        whole["decisions"], kept = {**whole["decisions"], field: 10**9}, whole["decisions"]
        (here / "bad.json").write_text(json.dumps(whole))
        capsys.readouterr()
        assert run(["check", "bad.json"]) == 2
        assert f"bad.json: $.decisions.{field}: found 1000000000, expected {most}" in capsys.readouterr().err
        whole["decisions"] = kept


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["allgather", "--hardware", "ring4", "--sketch", "ring"], 2, "no input size"),
        (["allgather", "--hardware", "ring4", "--sketch", "ring", "--size", "0"], 2, "--size: found 0 bytes"),
        (["allgather", "--hardware", "ring4", "--sketch", "ring", "--size", "-1"], 2, "--size: found '-1'"),
        (
            ["allgather", "--hardware", "nowhere", "--sketch", "ring", "--size", "1"],
            2,
            "not one of the shipped profiles",
        ),
        (["allgather", "--hardware", "ring4", "--sketch", "nope", "--size", "1"], 2, "not one of the shipped sketches"),
        (["gossip", "--hardware", "ring4", "--sketch", "ring", "--size", "1"], 2, "gossip"),
        (["allgather", "--hardware", "ndv2", "--nodes", "1", "--sketch", "ndv2-sk-1"], 2, "$.symmetry_offsets[0]"),
        (["allgather", "--hardware", "ring4", "--sketch", "dgx2-sk-1"], 2, "$.num_nodes"),
        (["allgather", "--hardware", "ring4", "--nodes", "2", "--sketch", "ring", "--size", "1"], 2, "--nodes"),
        (["broadcast", "--hardware", "ring4", "--sketch", "ring", "--size", "1", "--root", "4"], 2, "--root: found 4"),
        (
            ["allgather", "--hardware", "ring4", "--sketch", "ring", "--size", "1", "--root", "0"],
            2,
            "--root: found 0, expected none: allgather has no root",
        ),
        (["allgather", "--hardware", "ring4", "--sketch", "ring", "--size", "1.5"], 2, "--size: found '1.5'"),
    ],
)
def test_bad_input_is_one_line(here, arguments, code, message, capsys):
    assert run(["plan", "collective", *arguments, "-o", "plan.json"]) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (here / "plan.json").exists()


def test_a_protocol_on_cpus_is_said_to_change_no_time(tmp_path, capsys):
    made = [
        "plan",
        "collective",
        "allreduce",
        "--hardware",
        "cpu-2x2",
        "--size",
        "64KB",
        "--method",
        "recursive-doubling",
    ]
    assert run([*made, "-o", str(tmp_path / "auto.plan.json")]) == 0
    assert "--protocol" not in capsys.readouterr().err
    assert run([*made, "--protocol", "LL128", "-o", str(tmp_path / "asked.plan.json")]) == 0
    assert "--protocol LL128 goes into the generated program; on CPUs no time depends on it" in capsys.readouterr().err


def test_a_plan_in_the_switch_from_end_to_end(here, capsys):
    given = ["--hardware", "ndv5", "--size", "64KiB", "--method", "nvls"]
    assert run(["plan", "collective", "allreduce", *given, "-o", "a.plan.json"]) == 0
    out = capsys.readouterr().out
    assert "two-shot over symmetric memory" in out
    assert "  in switch    64 steps through nvswitch" in out
    assert run(["check", "--fresh", "a.plan.json"]) == 0
    assert run(["simulate", "a.plan.json"]) == 0
    assert "rank 7 reduce" in capsys.readouterr().out
    assert run(["report", "a.plan.json", "-o", "r.html"]) == 0
    assert "64 steps in the switch of 2 KiB" in (here / "r.html").read_text()
    assert run(["generate", "a.plan.json", "--target", "mscclpp-json", "-o", "out"]) == 0
    assert run(["check", "out/allreduce.json", "out/allreduce_inplace.json"]) == 0
    capsys.readouterr()
    assert run(["generate", "a.plan.json", "--target", "cuda", "-o", "kernels"]) == 0
    assert run(["check", "kernels"]) == 0
    capsys.readouterr()
    assert run(["generate", "a.plan.json", "--target", "msccl-xml", "-o", "other"]) == 2
    assert "error: a.plan.json: in this plan switch nvswitch adds up or multicasts" in capsys.readouterr().err


def test_a_reduce_is_planned_for_what_runs_it(tmp_path, capsys, monkeypatch):
    """No runtime leaves a reduce to a switch, though the method can plan one, in half the time of trees."""
    monkeypatch.chdir(tmp_path)
    table = {name: METHODS[name] for name in ("nvls", "binomial")}
    monkeypatch.setattr("treadle.planner.passes.collective.planning.METHODS", table)
    words = "plan collective reduce --hardware ndv5 --size 64KiB --json"
    assert run([*words.split(), "-o", "a.json"]) == 0
    assert "nvls" not in json.loads(capsys.readouterr().out)["method"]
    assert run(["generate", "a.json", "--target", "cuda", "-o", "a"]) == 0
