"""generate, check, simulate and run from the command line, on plans that the planner makes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from tests.planner.plans import collective_plan
from treadle.cli.main import run
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.sketch import Sketch

MODEL = """
import torch
from torch import nn


def step():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    return model, (torch.randn(64, 16), torch.randn(64, 4)), lambda m, x, y: (m(x) - y).square().mean()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two collective plans with copies of their inputs next to them."""
    folder = tmp_path_factory.mktemp("plans")
    hardware = store.load(resources.locate("profiles", "ring4"), Hardware)
    sketch = store.load(resources.locate("sketches", "ring"), Sketch)
    store.save(hardware, folder / "machine.json")
    store.save(sketch, folder / "guide.json")
    for collective in ("allreduce", "allgather"):
        plan = collective_plan(
            collective,
            hardware,
            sketch,
            size_bytes=65536,
            files={"hardware": "machine.json", "sketch": "guide.json"},
        )
        store.save(plan, folder / f"{collective}.plan.json")
    assert run(["generate", str(folder / "allreduce.plan.json"), "-o", str(folder / "allreduce")]) == 0
    return folder


@pytest.fixture
def plans(made: Path, tmp_path: Path) -> Path:
    """A copy of `made` to damage."""
    return Path(shutil.copytree(made, tmp_path / "plans"))


def test_several_plans_get_a_folder_each(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(plans / f"{name}.plan.json") for name in ("allreduce", "allgather")]
    assert run(["generate", *files, "--target", "msccl-xml", "-o", str(plans / "out"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["folders"]
    assert [Path(row["folder"]).name for row in rows] == ["allreduce", "allgather"]
    assert run(["check", *(row["folder"] for row in rows)]) == 0


def test_generate_does_not_write_over_other_files(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", str(plans / "allreduce.plan.json"), "-o", str(plans)]
    (plans / "plan.json").write_text("mine")
    assert run(arguments) == 2
    assert "plan.json: found a file that treadle did not generate" in capsys.readouterr().err
    assert (plans / "plan.json").read_text() == "mine"
    (plans / "plan.json").unlink()
    assert run(arguments) == 0


def test_good_files_are_accepted(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["allreduce.plan.json", "machine.json", "guide.json", "allreduce", "allreduce/allreduce.xml"]
    assert run(["check", *(str(plans / name) for name in names)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": accepted (")[0] for line in lines] == [str(plans / name) for name in names]
    assert "allreduce of 4 ranks" in lines[-1]


def test_xml_is_recognised_by_content(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plans / "algorithm.txt").write_text((plans / "allreduce" / "allreduce.xml").read_text())
    assert run(["check", str(plans / "algorithm.txt")]) == 0
    assert "accepted (allreduce of 4 ranks" in capsys.readouterr().out


def test_one_bad_file_among_good_ones(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, absent = plans / "allreduce.plan.json", plans / "bad.xml", plans / "absent.xml"
    text = (plans / "allreduce" / "allreduce.xml").read_text()
    bad.write_text(text.replace('type="rrc"', 'type="r"', 1))
    assert run(["check", str(good), str(bad)]) == 1
    out = capsys.readouterr().out
    assert f"{bad}: rejected: " in out
    assert "  gpu 0 tb 0 step 0 (line 4): " in out or "expected the sum of input chunk" in out
    assert run(["check", str(bad), str(absent), str(good), "--json"]) == 2
    captured = capsys.readouterr()
    assert [row["verdict"] for row in json.loads(captured.out)["files"]] == ["rejected", "unreadable", "accepted"]
    unreadable = f"error: {absent}: cannot read: No such file or directory\n"
    assert captured.err == f"{unreadable}error: rejected 1 of 3 files: {bad}\n"


def change_xml(plans: Path) -> None:
    path = plans / "allreduce" / "allreduce.xml"
    path.write_text(path.read_text().replace('cnt="1"', 'cnt="2"', 1))


def change_xml_and_manifest(plans: Path, old: str = 'name="treadle', new: str = 'name="mine') -> None:
    """Change the algorithm, by default its name, and repair the manifest."""
    from treadle.codegen.emit import text_digest

    path, manifest = plans / "allreduce" / "allreduce.xml", plans / "allreduce" / "artefact.json"
    before = path.read_text()
    after = before.replace(old, new, 1)
    path.write_text(after)
    manifest.write_text(manifest.read_text().replace(text_digest(before), text_digest(after)))


def remove_xml(plans: Path) -> None:
    (plans / "allreduce" / "allreduce_inplace.xml").unlink()


def break_xml(plans: Path) -> None:
    (plans / "allreduce" / "allreduce.xml").write_text("<algo")


def other_plan(plans: Path) -> None:
    (plans / "allreduce" / "plan.json").write_text((plans / "allgather.plan.json").read_text())


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (change_xml, "allreduce.xml: changed since it was generated"),
        (change_xml_and_manifest, "allreduce.xml: not what this version generates from the plan; generate again"),
        (remove_xml, "allreduce_inplace.xml: missing, the manifest lists it"),
        (break_xml, "allreduce.xml: found broken XML"),
        (other_plan, "plan.json: not the manifest's plan"),
    ],
)
def test_damaged_folders_are_rejected(plans: Path, capsys: pytest.CaptureFixture[str], damage, finding: str) -> None:
    damage(plans)
    assert run(["check", str(plans / "allreduce")]) == 1
    assert f"  {finding}" in capsys.readouterr().out


def damaged(plan: Plan, **changes: object) -> Plan:
    return structs.replace(plan, **changes)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (
            lambda plan: damaged(plan, decisions=structs.replace(plan.decisions, makespan_ns=1)),
            "makespan_ns: found 1",
        ),
        (
            lambda plan: damaged(
                plan, decisions=structs.replace(plan.decisions, transfers=plan.decisions.transfers[:-1])
            ),
            "rank",
        ),
        (
            lambda plan: damaged(plan, prediction=structs.replace(plan.prediction, time_us=1.0)),
            "prediction: time 1 us, the plan takes",
        ),
        (
            lambda plan: damaged(plan, certificate=structs.replace(plan.certificate, objective=1.0)),
            "certificate: objective 1 ns, the plan takes",
        ),
        (
            lambda plan: damaged(plan, certificate=structs.replace(plan.certificate, lower_bound=1e9)),
            "certificate: lower bound 1e+09 above the objective",
        ),
        (
            lambda plan: damaged(plan, certificate=structs.replace(plan.certificate, gap=0.5)),
            "certificate: gap 0.5, objective and lower bound make it",
        ),
        (
            lambda plan: damaged(plan, certificate=structs.replace(plan.certificate, lower_bound=1.0, gap=1.0)),
            "certificate: says optimal, but the lower bound is not the objective",
        ),
        (
            lambda plan: damaged(plan, certificate=structs.replace(plan.certificate, optimal=False)),
            "certificate: says not optimal, but the lower bound is the objective",
        ),
        (
            lambda plan: damaged(plan, certificate=structs.replace(plan.certificate, unit="us")),
            "certificate: unit 'us', expected 'ns'",
        ),
    ],
)
def test_damaged_plans_are_rejected(plans: Path, capsys: pytest.CaptureFixture[str], change, finding: str) -> None:
    path = plans / "allreduce.plan.json"
    store.save(change(store.load(path, Plan)), path)
    assert run(["check", str(path)]) == 1
    out, err = capsys.readouterr()
    assert finding in out
    assert err == f"error: rejected 1 of 1 file: {path}\n"


def test_a_file_that_the_manifest_does_not_list_is_mentioned(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plans / "allreduce" / "other.xml").write_text("<algo")
    assert run(["check", str(plans / "allreduce")]) == 0
    assert "; not of the manifest and not checked: other.xml)" in capsys.readouterr().out
    (plans / "allreduce" / "artefact.json").unlink()
    assert run(["check", str(plans / "allreduce")]) == 2
    assert "found no artefact.json, expected a folder that `treadle generate` wrote" in capsys.readouterr().err


def test_fresh_plans_are_accepted_where_their_inputs_lie(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--fresh", str(plans / "allreduce.plan.json"), str(plans / "allreduce")]) == 0
    assert "inputs hardware, sketch checked" in capsys.readouterr().out
    (plans / "allreduce" / "machine.json").unlink()
    assert run(["check", "--fresh", str(plans / "allreduce")]) == 1
    found = capsys.readouterr().out
    assert "  not compared with its inputs: no hardware 'machine.json', name it with --hardware" in found
    arguments = ["--hardware", str(plans / "machine.json"), "--sketch", str(plans / "guide.json")]
    assert run(["check", "--fresh", *arguments, str(plans / "allreduce")]) == 1
    assert "machine.json: missing, the manifest lists it" in capsys.readouterr().out


def test_stale_plans_name_the_input_that_changed(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hardware = store.load(plans / "machine.json", Hardware)
    slower = [structs.replace(link, alpha_us=(link.alpha_us or 0) + 1) for link in hardware.links]
    store.save(structs.replace(hardware, links=tuple(slower)), plans / "machine.json")
    path = str(plans / "allreduce.plan.json")
    assert run(["check", path]) == 0
    assert run(["check", "--fresh", path]) == 1
    assert f"stale: hardware {plans / 'machine.json'} is not the one the plan was made from" in (
        capsys.readouterr().out
    )
    assert run(["check", "--sketch", str(plans / "guide.json"), path]) == 0


def test_a_plan_changed_after_generating_is_stale(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(plans / "allgather.plan.json", plans / "allreduce.plan.json")
    arguments = ["--hardware", str(plans / "machine.json"), "--sketch", str(plans / "guide.json")]
    assert run(["check", "--fresh", *arguments, str(plans / "allreduce")]) == 1
    assert "has changed since; generate again" in capsys.readouterr().out


def test_shipped_inputs_are_found_by_name(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    arguments = ["plan", "collective", "allgather", "--size", "64K", "-o", plan]
    assert run([*arguments, "--hardware", "ring4", "--sketch", "ring"]) == 0
    assert run(["check", "--fresh", plan]) == 0
    assert run(["check", "--fresh", "--hardware", "mesh4", plan]) == 1


def test_simulated_and_planned_times_agree(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = plans / "trace.json"
    assert run(["simulate", str(plans / "allreduce.plan.json"), "--perfetto", str(trace), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    plan = store.load(str(plans / "allreduce.plan.json"), Plan)
    assert result["time_us"] == result["planned_us"] == plan.prediction.time_us
    assert result["links_us"] * 1000 == plan.decisions.makespan_ns
    assert result["tasks"] == 48
    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == 48
    assert max(span["ts"] + span["dur"] for span in spans) == pytest.approx(result["links_us"])


@pytest.mark.slow
def test_run_prints_a_table_and_wrong_programs_do_not_run(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(plans / "allreduce")
    arguments = ["--sizes", "0,7,1000", "--dtypes", "int64", "--repeats", "1"]
    assert run(["run", folder, *arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [(row["program"], row["elements"]) for row in rows] == [
        (name, size) for name in ("allreduce.xml", "allreduce_inplace.xml") for size in (0, 7, 1000)
    ]
    assert all(row["good"] and row["max_error"] == 0 for row in rows)
    assert all((row["predicted_seconds"] is None) == (row["elements"] == 0) for row in rows)
    assert run(["run", folder, "--world", "3"]) == 2
    assert "error: --world: found 3, expected 4" in capsys.readouterr().err
    assert run(["run", folder, "--sizes", "-1"]) == 2
    assert run(["run", folder, "--sizes", "9" * 12]) == 2
    assert "expected at most 99,999,999,999" in capsys.readouterr().err
    assert run(["run", folder, "--dtypes", "complex64"]) == 2
    capsys.readouterr()
    change_xml_and_manifest(plans, 'cnt="1"', 'cnt="2"')
    assert run(["run", folder]) == 1
    captured = capsys.readouterr()
    assert "not run, its check failed" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("damage", [change_xml, remove_xml, other_plan])
def test_folders_that_were_changed_do_not_run(plans: Path, capsys: pytest.CaptureFixture[str], damage) -> None:
    damage(plans)
    assert run(["run", str(plans / "allreduce")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {plans / 'allreduce'}/")


def test_folders_without_a_manifest_do_not_run(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(plans)]) == 2
    assert "found no artefact.json, expected a folder that `treadle generate` wrote" in capsys.readouterr().err


def test_a_memory_plan_from_capture_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "artefacts_cli_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(["trace", "capture", "artefacts_cli_model:step", "-o", "step.json"]) == 0
    planning = ["plan", "memory", "--trace", "step.json", "--hardware", "cpu-2x2"]
    assert run([*planning, "--budget", "1x", "-o", "p.json"]) == 0
    assert run(["generate", "p.json", "--target", "torch", "-o", "out"]) == 0
    assert run(["check", "p.json", "out", "--trace", "step.json", "--hardware", "cpu-2x2"]) == 0
    capsys.readouterr()
    Path("step.json").rename("away.json")
    assert run(["check", "out"]) == 0
    Path("away.json").rename("step.json")
    assert "not regenerated: no trace 'step.json', name it with --trace" in capsys.readouterr().out
    assert run(["simulate", "p.json", "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    plan = store.load("p.json", Plan)
    assert simulated["time_us"] == pytest.approx(plan.prediction.time_us)
    assert simulated["peak_bytes"] == plan.prediction.peak_bytes
    assert run(["run", "out", "--steps", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert run(["run", "out", "--steps", "2"]) == 0
    assert "budget" in capsys.readouterr().out
    Path("out/step.py").write_text("import os\n")
    assert run(["check", "out"]) == 1
    capsys.readouterr()
    problem = structs.replace(plan.decisions.problem, budget_bytes=1000)
    store.save(structs.replace(plan, decisions=structs.replace(plan.decisions, problem=problem)), "small.json")
    assert run(["generate", "small.json", "--trace", "step.json", "-o", "small"]) == 1
    captured = capsys.readouterr()
    assert "small.json: not generated, its check failed" in captured.err
    assert "1000" in captured.err
    assert not Path("small").exists()


@pytest.mark.parametrize("runtime", ["msccl", "rccl", "executor"])
def test_a_folder_for_a_runtime_is_generated_again_to_the_same_text(made, tmp_path, runtime, capsys):
    """64 instances are too many for every runtime; the folder says how many it has."""
    plan = store.load(made / "allgather.plan.json", Plan)
    large = structs.replace(plan, decisions=structs.replace(plan.decisions, instances=64))
    store.save(large, tmp_path / "large.plan.json")
    out = tmp_path / runtime
    given = ["generate", str(tmp_path / "large.plan.json"), "--target", "msccl-xml", "--runtime", runtime, "-o"]
    assert run([*given, str(out)]) == 0
    facts = json.loads((out / "artefact.json").read_text())["facts"]
    assert facts["runtime"] == runtime
    assert f"only {facts['instances']} instances" in capsys.readouterr().err
    assert run(["check", "--runtime", runtime, *map(str, sorted(out.glob("*.xml")))]) == 0
    assert run(["check", str(out)]) == 0
    assert "generated again to the same text" in capsys.readouterr().out
    assert run(["generate", str(tmp_path / "large.plan.json"), "--target", "cuda", "--runtime", "rccl", "-o", "x"]) == 2


def test_xml_that_no_runtime_takes_is_mentioned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pattern = {"kind": "pattern", "version": 1, "name": "shift", "pairs": [[0, 1], [1, 2], [2, 3], [3, 0]]}
    Path("shift.json").write_text(json.dumps(pattern))
    given = ["--pattern", "shift.json", "--hardware", "ring4", "--size", "64K", "-o", "shift.plan.json"]
    assert run(["plan", "collective", "sendrecv", *given]) == 0
    capsys.readouterr()
    assert run(["generate", "shift.plan.json", "-o", "any"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "sendrecv.xml: taken by no runtime: msccl (empty-range), rccl (collective-name)" in line
    assert line.endswith("collective 'custom' is known to msccl, see --runtime")
    assert run(["generate", "shift.plan.json", "--runtime", "msccl", "-o", "one"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["check", "one/sendrecv.xml", "--runtime", "msccl"]) == 0
