"""`treadle check` of fusion plans: what a plan states is checked against its program, and priced on its hardware."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.planning import plan_fusion
from treadle.planner.passes.fusion.program import Bindings
from treadle.planner.passes.fusion.ranking import FusionProblem

ROOT = Path(__file__).parents[4]
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An overlap of a product and a fused AllReduce."""
    file = tmp_path_factory.mktemp("sound") / "p.json"
    program = str(ROOT / "examples" / "fusion" / "attention.py")
    arguments = ("plan", "fusion", program, "--hardware", "switch4", "--bind", "B=8,S=1K,H=3K", "-o", str(file))
    assert run(arguments) == 0
    document: dict[str, Any] = json.loads(file.read_text())
    assert [stage.get("overlaps", False) for stage in document["decisions"]["stages"]] == [False, True]
    return document


def checked(document: dict[str, Any], path: Path, *options: str) -> int:
    path.write_text(json.dumps(document))
    return run(["check", *options, str(path)])


def stage(at: int, **fields: object) -> Edit:
    return lambda plan: plan["decisions"]["stages"][at].update(fields)


def decide(**fields: object) -> Edit:
    return lambda plan: plan["decisions"].update(fields)


def rival(at: int, **fields: object) -> Edit:
    return lambda plan: plan["decisions"]["rivals"][at].update(fields)


def certify(**fields: object) -> Edit:
    return lambda plan: plan["certificate"].update(fields)


def calls(edit: Callable[[list[dict[str, Any]]], object]) -> Edit:
    return lambda plan: edit(plan["decisions"]["transforms"])


ALONE: dict[str, tuple[Edit, str]] = {
    "no transforms": (decide(transforms=[]), "transforms: derive another schedule"),
    "one left out": (calls(lambda found: found.pop(0)), "transforms: "),
    "one twice": (calls(lambda found: found.append(found[-1])), "transforms: "),
    "another name": (calls(lambda found: found[0].update(transform="magic")), "found transformation 'magic'"),
    "nonsense": (calls(lambda found: found[0].update(arguments={"x": 3})), "arguments that do not fit"),
    "wrong type": (calls(lambda found: found[0]["arguments"].update(ar=[3])), "transforms: "),
    "no name": (calls(lambda found: found[0]["arguments"].update(ar={})), "found arguments that do not fit"),
    "kind": (stage(0, kind="pointwise"), "the schedule has layer, matmul of layer"),
    "members": (stage(1, members=["rs"]), "the schedule has fused_allreduce"),
    "algorithm": (stage(1, algorithm="magic"), "runs on 'magic', expected one of"),
    "channels": (stage(1, channels=1000), "1000 channels, expected at most 32"),
    "a product on a ring": (stage(0, algorithm="ring"), "moves nothing between ranks"),
    "starts later": (stage(1, start_ns=10**9), "has from 1000000000 to"),
    "extents": (decide(extents={"B": 8, "H": 3072}), "extents: of B, H, the program has B, H, S"),
    "groups": (decide(groups=10**6), "groups: 1000000, the program is of 1"),
    "state": (decide(state=5.0), "keeps as state: 5, the"),
    "considered": (decide(considered=99), "considered: 99 schedules"),
    "faster rival": (rival(0, time_ns=5), "and neither was measured"),
    "rival's name": (rival(0, name="AR"), "rivals: found the name AR, its schedule is"),
    "rival's text": (rival(0, schedule="p = 3"), "rivals: "),
    "rival of another program": (
        lambda plan: plan["decisions"]["rivals"][0].update(
            schedule=plan["decisions"]["rivals"][0]["schedule"].replace("+ r", "- r")
        ),
        "is not the program's",
    ),
    "no peers": (lambda plan: plan["decisions"]["rivals"].clear(), "found no as written and computation fused"),
    "taken": (lambda plan: plan["decisions"]["taken"].pop(), "taken: "),
    "taken else": (lambda plan: plan["decisions"]["taken"][0].update(transform="magic"), "taken: magic of"),
    "refused": (decide(refused=[{"transform": "magic", "on": ["d"], "why": "x"}]), "refused: found transformation"),
    "measured": (decide(measured_ns={"AR": 5}), "measured: AR, neither the schedule nor a rival"),
    "checker": (certify(checker="a stranger"), "certificate: checker 'a stranger'"),
    "inputs": (lambda plan: plan["inputs"].update(sketch=plan["inputs"]["hardware"]), "inputs: found sketch"),
}


@pytest.mark.parametrize("what", ALONE)
def test_what_does_not_follow_from_the_schedule_is_found(sound, tmp_path, capsys, what):
    edit, finding = ALONE[what]
    document = copy.deepcopy(sound)
    edit(document)
    assert checked(document, tmp_path / "p.json") == 1
    assert finding in capsys.readouterr().out


ON_HARDWARE: dict[str, tuple[Edit, str]] = {
    "nodes": (decide(nodes=7), "switch4 "),
    "ranks": (decide(ranks=17), "elements that each rank sends"),
    "very many ranks": (decide(ranks=10**6), "elements that each rank sends"),
    "quicker stage": (stage(1, time_ns=3), "time_ns of fused_allreduce is 3, on the hardware"),
    "protocol": (stage(1, protocol="LL"), "fused_allreduce is fastest on"),
    "channels": (stage(1, channels=3), "fused_allreduce is fastest on"),
    "begin": (stage(1, start_ns=1), "start_ns of fused_allreduce is 1, on the hardware"),
    "slower rival": (rival(0, time_ns=10**9), "takes 1000000000 ns, on the hardware"),
    "argument": (certify(argument="trust me"), "certificate: found the argument 'trust me'"),
    "no hardware": (lambda plan: plan["inputs"].clear(), "found no hardware"),
}


@pytest.mark.parametrize("what", ON_HARDWARE)
def test_what_does_not_follow_from_the_hardware_is_found(sound, tmp_path, capsys, what):
    edit, finding = ON_HARDWARE[what]
    document = copy.deepcopy(sound)
    edit(document)
    assert checked(document, tmp_path / "p.json", "--fresh") == 1
    assert finding in capsys.readouterr().out


def test_without_its_hardware_a_plan_claims_its_gap(sound, tmp_path, capsys):
    assert checked(sound, tmp_path / "p.json") == 0
    assert "it claims a gap of " in capsys.readouterr().out
    assert checked(sound, tmp_path / "p.json", "--fresh") == 0
    assert "claims" not in capsys.readouterr().out


@pytest.mark.parametrize("multiprocessors", [1, 2])
@pytest.mark.parametrize("name", ["sgd", "attention"])
def test_overlaps_that_find_no_multiprocessors_are_refused_and_do_not_fail_the_plan(name, multiprocessors):
    found = store.load(ROOT / "profiles" / "switch4.yaml", Hardware)
    hardware = replace(found, devices=tuple(replace(x, multiprocessors=multiprocessors) for x in found.devices))
    program = parse((ROOT / "examples" / "fusion" / f"{name}.py").read_text(), name)
    extents = {key: 4096 for value in program.inputs for extent in value.type.shape for key in extent.names}
    plan = plan_fusion(FusionProblem(program, Bindings(extents, 4), hardware))
    codes = {reason.code for reason in plan.decisions.refused}
    assert ("multiprocessors" in codes) == (name == "attention")
