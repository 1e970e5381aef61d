"""`treadle plan fusion` from files to files."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tests.planner.passes.fusion.test_find import LAYER
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.fusion.check import check

EXAMPLES = Path(__file__).parents[4] / "examples" / "fusion"
HEAD = "from treadle.fusion import *\n"
TENSOR = HEAD + 'N = dims("N")\nx = Tensor("x", f32, [N], Local)\n'
TEXTS = {
    "loop.py": HEAD + "for n in range(3): pass\n",
    "other_import.py": "import os\n",
    "attribute.py": TENSOR + "y = x.sum()\n",
    "mistyped.py": TENSOR + 'y = AllGather(x)\nprogram = Execute("mistyped", [x], [y])\n',
    "none.py": TENSOR,
    "broken.py": "x = (\n",
    "made.py": TENSOR + 'y = AllReduce("+", x)\nmade = Execute("made", [x], [y])\n',
    "raises.py": "1 / 0\n",
    "alone.yaml": "kind: hardware\nversion: 1\nname: alone\nnodes: 1\ndevices:\n  - {model: toy, kind: gpu, count: 2}\n"
    "sources: {nodes: toy, devices: toy}\n",
}
SGD = ("plan", "fusion", "sgd.py", "--hardware", "switch4", "--bind", "N=4K")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs, good and bad; the working directory is theirs."""
    for name in ("sgd", "adam", "attention", "pipeline", "lamb"):
        (tmp_path / f"{name}.py").write_text((EXAMPLES / f"{name}.py").read_text())
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(path: Path | str) -> Plan:
    return store.load(path, Plan)


def test_a_program_gives_a_checked_plan_and_its_figures(folder, capsys):
    assert run([*SGD, "-o", "sgd.plan.json"]) == 0
    plan = loaded("sgd.plan.json")
    assert check(plan.decisions) == []
    assert plan.inputs["hardware"].file == "switch4"
    out = capsys.readouterr()
    assert out.err == ""
    lines = dict(line.split(maxsplit=1) for line in out.out.split("\n\n")[0].splitlines())
    assert lines["program"] == "sgd: N=4,096 on 4 ranks"
    assert lines["schedule"] == "fuse(RS-C-AG)"
    assert lines["where"] == "fuse(a-b) one kernel, RS ReduceScatter, AG AllGather, C computation"
    assert lines["time"].startswith(f"{plan.prediction.time_us:,.1f} us predicted, ")
    assert out.out.endswith("wrote sgd.plan.json\n")
    titles = [line for line in out.out.splitlines() if line.startswith(("launches", "other", "taken", "refused"))]
    assert titles[0] == "launches"
    assert titles[1].startswith("other schedules, of ")
    assert titles[2:] == ["taken", "refused"]
    assert "as written: AR; C" in out.out
    assert run(["check", "--fresh", "sgd.plan.json"]) == 0


def test_the_same_inputs_give_the_same_bytes_and_json_tells_what_the_plan_says(folder, capsys):
    assert run([*SGD, "-o", "one.json"]) == 0
    capsys.readouterr()
    assert run([*SGD, "-o", "two.json", "--json"]) == 0
    assert Path("one.json").read_bytes() == Path("two.json").read_bytes()
    facts = json.loads(capsys.readouterr().out)
    plan = loaded("one.json")
    assert facts["plan"] == "two.json"
    assert facts["time_us"] == plan.prediction.time_us
    assert facts["lower_bound_us"] * 1000 == pytest.approx(plan.certificate.lower_bound)
    assert facts["lower_bound_us"] <= facts["time_us"] <= facts["computation_fused_us"] <= facts["as_written_us"]
    assert facts["extents"] == {"N": 4096}
    assert (facts["ranks"], facts["groups"]) == (4, 1)
    assert [stage["name"] for stage in facts["stages"]] == [stage.name for stage in plan.decisions.stages]
    assert len(facts["refused"]) == len(plan.decisions.refused) > 0
    assert all(each["code"] and each["witness"] for each in facts["refused"])


def test_a_program_may_be_imported_and_a_file_is_not_run(folder, capsys):
    arguments = ["--hardware", "switch4", "--bind", "N=1K", "--json"]
    assert run(["plan", "fusion", "made:made", *arguments, "-o", "one.json"]) == 0
    assert run(["plan", "fusion", "made.py", *arguments, "-o", "two.json"]) == 0
    assert loaded("one.json") == loaded("two.json")
    (folder / "writes.py").write_text("open('written', 'w')\n" + TEXTS["made.py"])
    capsys.readouterr()
    assert run(["plan", "fusion", "writes.py", *arguments, "-o", "three.json"]) == 2
    assert "error: writes.py:1: " in capsys.readouterr().err
    assert not Path("written").exists()


def test_parts_are_the_tensors_of_a_dimension(folder, capsys):
    arguments = ["plan", "fusion", "lamb.py", "--hardware", "switch4", "--parts", "N=1500,1K,10", "-o", "p.json"]
    assert run(arguments) == 0
    decisions = loaded("p.json").decisions
    assert decisions.parts == {"N": (1500, 1024, 10)}
    assert decisions.extents == {"N": 2534}
    capsys.readouterr()
    assert run([*arguments, "--bind", "N=2535"]) == 2
    assert "--parts: found N=2535, its parts sum up to 2534" in capsys.readouterr().err


def test_groups_are_those_of_a_pipeline(folder, capsys):
    arguments = ["plan", "fusion", "pipeline.py", "--hardware", "dgx2", "--bind", "B=2,S=8,H=16", "-o", "p.json"]
    assert run([*arguments, "--ranks", "2", "--groups", "3"]) == 0
    decisions = loaded("p.json").decisions
    assert (decisions.ranks, decisions.groups) == (2, 3)
    assert "on 3 groups of 2 ranks" in capsys.readouterr().out
    assert (
        run(["plan", "fusion", "pipeline.py", "--hardware", "switch4", "--bind", "B=2,S=8,H=16", "-o", "p.json"]) == 0
    )
    assert (loaded("p.json").decisions.ranks, loaded("p.json").decisions.groups) == (2, 2)


def test_a_sweep_plans_every_size_and_tells_where_winners_change(folder, capsys):
    arguments = [
        "plan",
        "fusion",
        "sgd.py",
        "--hardware",
        "dgx2",
        "--nodes",
        "2",
        "--sweep",
        "N=1K:32M:32K",
        "-o",
        "plans",
    ]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["size"] for row in found["sizes"]] == [2**10, 2**25]
    for row in found["sizes"]:
        plan = loaded(row["plan"])
        assert plan.decisions.extents == {"N": row["size"]}
        assert plan.prediction.time_us == row["time_us"]
    winners = [row["schedule"] for row in found["sizes"]]
    assert len(found["changes"]) == sum(a != b for a, b in pairwise(winners)) > 0
    for change in found["changes"]:
        assert 2**10 < change["from"] <= 2**25
        assert change["below"] in winners
        assert change["above"] in winners
    assert run(arguments) == 0
    out = capsys.readouterr().out
    change = found["changes"][0]
    assert f"from N={change['from']:,} on, {change['above']} is faster than {change['below']}" in out
    assert out.endswith("wrote 2 plans to plans\n")


def test_a_change_of_winners_is_exact(folder, capsys):
    arguments = ["plan", "fusion", "sgd.py", "--hardware", "dgx2", "--nodes", "2", "--json"]
    assert run([*arguments, "--sweep", "N=1K:32M:32K", "-o", "plans"]) == 0
    change = json.loads(capsys.readouterr().out)["changes"][0]
    names = []
    for extent in (change["from"] - 1, change["from"]):
        assert run([*arguments, "--bind", f"N={extent}", "-o", "p.json"]) == 0
        names.append(json.loads(capsys.readouterr().out)["schedule"])
    assert names[0] != change["above"] == names[1]


def test_programs_are_found_in_a_trace(folder, capsys):
    store.save(LAYER, "step.trace.json")
    arguments = ["plan", "fusion", "--trace", "step.trace.json", "--hardware", "switch4", "-o", "found"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "predicted to save " in out
    assert run([*arguments, "--optimizer", "sgd", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["program"] for row in found["found"]] == ["sgd", "tail"]
    for row in found["found"]:
        plan = loaded(row["plan"])
        assert set(plan.inputs) == {"hardware", "trace"}
        assert plan.decisions.ranks == 4
        assert run(["check", "--fresh", row["plan"]]) == 0
    document = json.loads(Path("found/tail.plan.json").read_text())
    wider = [
        msgspec.structs.replace(tensor, shape=(*tensor.shape[:-1], 8)) if tensor.shape[-1] == 4 else tensor
        for tensor in LAYER.tensors
    ]
    changed = msgspec.structs.replace(LAYER, tensors=tuple(wider))
    store.save(changed, "step.trace.json")
    document["inputs"]["trace"]["digest"] = store.digest(changed)
    Path("found/tail.plan.json").write_text(json.dumps(document))
    assert run(["check", "--fresh", "found/tail.plan.json"]) == 1
    assert "not among the programs in the trace, at its sizes; plan again" in capsys.readouterr().out


def test_a_trace_of_inference_has_nothing_to_find(folder, capsys):
    tensors = tuple(tensor for tensor in LAYER.tensors if tensor.role != "gradient")
    ops = tuple(op for op in LAYER.ops if op.phase == "forward" and op.id != "add")
    store.save(msgspec.structs.replace(LAYER, tensors=tensors, ops=ops), "step.trace.json")
    assert run(["plan", "fusion", "--trace", "step.trace.json", "--hardware", "switch4", "-o", "found"]) == 2
    assert "found neither gradients nor layers that end in a residual sum" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py",), "nowhere.py: cannot read"),
        (("nowhere",), "PROGRAM: found 'nowhere', expected a file of program text, or MODULE:NAME"),
        (("nowhere:made",), "nowhere:made: found no module 'nowhere'"),
        (("made:other",), "made:other: found no 'other' in made, expected a program"),
        (("os:path",), "os:path: found a module in os, expected a program"),
        (("raises:made",), "raises:made: importing raises raised ZeroDivisionError"),
        (("mistyped:program",), "AllGather: found Local, expected Sliced (row 21 of the table in docs/fusion.md)"),
        (("loop.py",), "loop.py:2: found `for n in range(3): pass`, expected `name = expression`"),
        (("other_import.py",), "other_import.py:1: found `import os`"),
        (("attribute.py",), "attribute.py:4: found `x.sum()`, expected a value of the language"),
        (("mistyped.py",), "mistyped.py:4: AllGather: found Local, expected Sliced (row 21"),
        (("none.py",), "none.py:3: found 0 programs, expected one `program = Execute(...)`"),
        (("broken.py",), "broken.py:1: "),
        (("sgd.py",), "--bind: found no value for N, expected N=NUMBER"),
        (("sgd.py", "--bind", "M=1"), "--bind: found M, the dimensions of sgd are N"),
        (("sgd.py", "--bind", "N=1,N=2"), "--bind: found N twice"),
        (("sgd.py", "--bind", "N"), "--bind: found 'N', expected NAME=NUMBER such as N=1M"),
        (("sgd.py", "--bind", "N=0"), "--bind: found '0', expected at least 1"),
        (("sgd.py", "--bind", "N=1.5"), "--bind: found '1.5', expected a number such as 4096, 64K or 1M"),
        (("sgd.py", "--bind", "N=1024T"), "--bind: found '1024T', expected at most 281,474,976,710,656"),
        (("attention.py", "--bind", "B=1G,S=1,H=1M"), "elements in x, expected at most"),
        (("sgd.py", "--parts", "N=1,,2"), "--parts: found '', expected a number"),
        (("sgd.py", "--bind", "N=1K", "--parts", "N=1,2"), "--parts: found N=1024, its parts sum up to 3"),
        (("sgd.py", "--bind", "N=1K", "--ranks", "5"), "--ranks: found 5 ranks, switch4 has 4 devices; see --nodes"),
        (("sgd.py", "--bind", "N=1K", "--groups", "2"), "--groups: found 2, sgd is one of WORLD and has no groups"),
        (("pipeline.py", "--bind", "B=1,S=1,H=8", "--groups", "1"), "--groups: found 1, expected at least 2"),
        (("pipeline.py", "--bind", "B=1,S=1,H=8", "--groups", "5"), "--ranks: found 5 groups of 1 rank"),
        (("sgd.py", "--sweep", "N=1M:1K"), "--sweep: found '1M:1K', expected the smaller end first"),
        (("sgd.py", "--sweep", "1M"), "--sweep: found '1M', expected NAME=FROM..TO such as N=1K..1G"),
        (("sgd.py", "--sweep", "N=1K:1M:1"), "with :5 behind it for 5 times from one to the next (from 2 on)"),
        (("sgd.py", "--sweep", "M=1K:1M"), "--bind: found M, the dimensions of sgd are N"),
        (("sgd.py", "--sweep", "N=1K:1M", "--measure"), "--measure times one size, expected it without --sweep"),
        (("sgd.py", "--bind", "N=1K", "--top", "3"), "--top belongs to --measure"),
        (("sgd.py", "--bind", "N=1K", "--measure", "--top", "0"), "0 is not in the range 1<=x<=1000000"),
        (("sgd.py", "--optimizer", "adam", "--bind", "N=1"), "--optimizer belongs to --trace"),
        (("sgd.py", "--trace", "step.json"), "give either PROGRAM or --trace"),
        ((), "give either PROGRAM or --trace"),
        (("--trace", "step.json", "--bind", "N=1"), "a trace has its own sizes"),
        (("--trace", "step.json"), "step.json: cannot read"),
    ],
)
def test_what_cannot_be_planned_is_told_in_one_line(folder, capsys, arguments, message):
    assert run(["plan", "fusion", *arguments, "--hardware", "switch4", "-o", "plan.json"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1
    assert not Path("plan.json").exists()


@pytest.mark.parametrize(
    ("arguments", "output", "message"),
    [
        (("--hardware", "switch4", "--bind", "N=1"), "sgd.py", "expected a file that ends in"),
        (("--hardware", "switch4", "--bind", "N=1"), ".", "found a folder, expected a file to write"),
        (("--hardware", "switch4", "--sweep", "N=1:2"), "a-file", "found a file, expected a folder for several plans"),
        (("--hardware", "alone.yaml", "--bind", "N=1"), "alone.yaml", "found an input of this command"),
        (
            ("--hardware", "alone.yaml", "--bind", "N=1"),
            "p.json",
            "found nothing that runs AllReduce on 2 ranks of alone",
        ),
        (("--hardware", "nothing", "--bind", "N=1"), "p.json", "nothing: no such file, and not one of the shipped"),
    ],
)
def test_outputs_and_machines_that_do_not_fit_are_told(folder, capsys, arguments, output, message):
    Path("a-file").write_text("")
    assert run(["plan", "fusion", "sgd.py", *arguments, "-o", output]) == 2
    assert message in capsys.readouterr().err
    assert (folder / "sgd.py").read_text() == (EXAMPLES / "sgd.py").read_text()


def test_one_device_has_a_plan_in_which_nothing_travels(folder, capsys):
    assert run(["plan", "fusion", "sgd.py", "--hardware", "p3-v100-16gb", "--bind", "N=1K", "-o", "p.json"]) == 0
    assert "N=1,024 on 1 rank\n" in capsys.readouterr().out
    assert loaded("p.json").decisions.volume == 0


def _times(document):
    """Twice as slow, in itself without a fault."""
    document["decisions"]["time_ns"] *= 2
    for stage in document["decisions"]["stages"]:
        stage["time_ns"] *= 2
        stage["end_ns"] *= 2
    for rival in document["decisions"]["rivals"]:
        rival["time_ns"] *= 2
    document["prediction"]["time_us"] *= 2
    document["certificate"]["objective"] *= 2
    document["certificate"]["gap"] = 1 - document["certificate"]["lower_bound"] / document["certificate"]["objective"]


def _schedule(found, instead):
    def edit(document):
        assert found in document["decisions"]["schedule"]
        document["decisions"]["schedule"] = document["decisions"]["schedule"].replace(found, instead)

    return edit


@pytest.mark.parametrize(
    ("edit", "finding"),
    [
        (_schedule("Update(p, p_part - lr", "Update(p, p_part + lr"), "state p is not the program's"),
        (_schedule('"AllReduceFuse"', '"ReduceScatterFuse"'), "expected ReduceScatter"),
        (_schedule("rs = ", "rt = "), "$.decisions.schedule"),
        (lambda document: document["decisions"].update(time_ns=1), "its stages end at"),
        (
            lambda document: document["decisions"].update(traffic=1.0),
            "elements that each rank loads and stores: 1, the",
        ),
        (lambda document: document["certificate"].update(lower_bound=1e9), "bound"),
        (_times, "on the hardware the schedule takes"),
    ],
)
def test_a_plan_that_was_edited_is_rejected(folder, capsys, edit, finding):
    assert run([*SGD, "-o", "p.json"]) == 0
    document = json.loads(Path("p.json").read_text())
    edit(document)
    Path("p.json").write_text(json.dumps(document))
    capsys.readouterr()
    assert run(["check", "--fresh", "p.json"]) == 1
    assert finding in capsys.readouterr().out
