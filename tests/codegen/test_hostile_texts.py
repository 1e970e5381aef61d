"""Hostile texts in every text of every document: refused in one line, or data in whatever is generated."""

from __future__ import annotations

import ast
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from tests.codegen import hostile, plans
from tests.codegen.swap import swap_plans
from tests.planner.machine.machines import profile
from tests.planner.samples import COLLECTIVE_PLAN, DOCUMENTS, SELECTION
from treadle.capture.graph import capture
from treadle.capture.optimizer import with_optimizer
from treadle.codegen import targets
from treadle.codegen.collective.selection_files import generate_selection
from treadle.codegen.fusion.generate import generate as generate_fusion
from treadle.codegen.python_form import require_form
from treadle.codegen.targets import Artefacts
from treadle.planner.documents import store
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.selection import Selection
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError, TreadleError
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.planning import plan_fusion
from treadle.planner.passes.fusion.program import Bindings
from treadle.planner.passes.fusion.ranking import FusionProblem

Texts = dict[str, str]


class Model(nn.Module):
    """Each kind of argument: texts, types, numbers that JSON lacks, random numbers, buffers; trees of inputs and of
    outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, batch: dict[str, torch.Tensor], approximate: str) -> OrderedDict[str, Any]:
        x = nn.functional.gelu(self.norm(self.first(batch["x"])), approximate=approximate)
        x = self.last(nn.functional.dropout(x)).tanh()
        x = x.masked_fill(x < 0, float("-inf")).softmax(-1)
        return OrderedDict(out=[x.sum(dtype=torch.float64)], kind="a text", far={"far": float("inf")})


def step():
    return Model(), {"batch": {"x": torch.zeros(3, 4)}, "approximate": "tanh"}, None


def loss():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (torch.zeros(3, 4),), lambda model, x: model(x).sum()


def raw(document: store.Document) -> Any:
    return json.loads(store.dumps(document))


def read(raws: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    return {role: store.loads(json.dumps(each), f"{role}.json", kinds[role]) for role, each in raws.items()}


def hold(
    raws: Mapping[str, Any],
    kinds: Mapping[str, type],
    generate: Mapping[str, Callable[..., Texts]],
    least: int,
) -> None:
    """Every attack on the documents is refused in one line, or what is generated of them keeps its shape. At least
    `least` of the texts are generated, so that this is more than refusals."""
    sound = read(raws, kinds)
    wanted = {
        target: {name: hostile.shape(name, text) for name, text in make(**sound).items()}
        for target, make in generate.items()
    }
    made = 0
    for words, attacked in hostile.attacks(raws):
        try:
            found = sound | read(attacked, kinds)
        except TreadleError as error:
            assert_one_line(error, words)
            continue
        for target, make in generate.items():
            try:
                texts = make(**found)
            except TreadleError as error:
                assert_one_line(error, words)
                continue
            for (name, text), shape in zip(texts.items(), wanted[target].values(), strict=True):
                assert hostile.alike(hostile.shape(name, text), shape), f"{target}, {name}: {words}"
            made += 1
    assert made >= least, made
    hold_everywhere(raws, kinds, generate, wanted)


def hold_everywhere(
    raws: Mapping[str, Any],
    kinds: Mapping[str, type],
    generate: Mapping[str, Callable[..., Texts]],
    wanted: Mapping[str, Mapping[str, Any]],
) -> None:
    """The same of one document for each target, with a hostile text in all texts of all elements that can have one."""

    def taken(attacked: Mapping[str, Any], make: Callable[..., Texts] = lambda **documents: {}) -> bool:
        try:
            make(**read(attacked, kinds))
        except TreadleError as error:
            assert_one_line(error, "everywhere")
            return False
        return True

    readable = hostile.everywhere(raws, hostile.ONE_LINE, taken)[1]
    for target, make in generate.items():
        attacked, texts = hostile.everywhere(raws, hostile.ONE_LINE, partial(taken, make=make), readable)
        assert texts, target
        for (name, text), shape in zip(make(**read(attacked, kinds)).items(), wanted[target].values(), strict=True):
            assert hostile.alike(hostile.shape(name, text), shape), f"{target}, {name}: {len(texts)} texts at once"


def assert_one_line(error: TreadleError, words: str) -> None:
    assert type(error) is not TreadleError
    assert "\n" not in str(error), words


def of_target(target: str) -> Callable[..., Texts]:
    def make(plan: Plan, trace: Trace | None = None) -> Texts:
        return written(targets.generate(replace(plan, inputs={}), "plan.json", trace, target))

    return make


def written(artefacts: Artefacts) -> Texts:
    """The texts but for the plan. Texts are quoted so well that the second wall has nothing to refuse but variables
    that nothing assigns, where tensors of a trace have other names in one place than in others."""
    for name, text in artefacts.files.items():
        if name.endswith(".py"):
            try:
                require_form(artefacts.target, text, name)
            except InputError as error:
                if re.search(r"found `\w+(\.\.\.)?`, expected", str(error)) is None:
                    raise AssertionError(str(error)) from error
                raise
    return {name: text for name, text in artefacts.files.items() if name != targets.PLAN_NAME}


def test_memory_plans():
    trace = swap_plans.timed(capture(step, "a model"))
    plan = plans.plan_with(plans.decisions_keeping(trace, ()))
    generate = {target.name: of_target(target.name) for target in targets.targets_for("memory").targets}
    hold({"plan": raw(plan), "trace": raw(trace)}, {"plan": Plan, "trace": Trace}, generate, 100)


def test_swap_plans():
    trace = swap_plans.timed(with_optimizer(capture(loss, "a model"), "sgd"))
    plan = swap_plans.plan_with(swap_plans.swapped(trace, 1.0))
    generate = {target.name: of_target(target.name) for target in targets.targets_for("swap").targets}
    hold({"plan": raw(plan), "trace": raw(trace)}, {"plan": Plan, "trace": Trace}, generate, 60)


def test_collective_plans():
    generate = {target.name: of_target(target.name) for target in targets.targets_for("collective").targets}
    hold({"plan": raw(COLLECTIVE_PLAN)}, {"plan": Plan}, generate, 9)


@pytest.mark.slow
def test_server_plans():
    plan = DOCUMENTS["server plan"]
    assert isinstance(plan, Plan)
    generate = {target.name: of_target(target.name) for target in targets.targets_for("server").targets}
    hold({"plan": raw(plan)}, {"plan": Plan}, generate, 9)


def test_checkpoint_plans():
    """Without lm-resiliency, which takes pairs only and no other text than the name."""
    plan = DOCUMENTS["checkpoint plan"]
    assert isinstance(plan, Plan)
    offered = [target.name for target in targets.targets_for("checkpoint").targets]
    generate = {name: of_target(name) for name in offered if name != "lm-resiliency"}
    hold({"plan": raw(plan)}, {"plan": Plan}, generate, 9)


def test_tiling_plans():
    """Names of arrays, operators and axes of the mesh, and what their functions need. The function is one that PyTorch
    does not have, which keeps the form of the call."""
    plan = raw(DOCUMENTS["tiling plan"])
    plan["decisions"]["problem"]["nodes"][1] |= {"function": "user:added", "params": {"combine": "add"}}
    generate = {target.name: of_target(target.name) for target in targets.targets_for("tiling").targets}
    hold({"plan": plan}, {"plan": Plan}, generate, 20)


def test_index_plans():
    plan = DOCUMENTS["index plan"]
    assert isinstance(plan, Plan)
    hold({"plan": raw(plan)}, {"plan": Plan}, {"index": of_target("index")}, 9)


def test_selections():
    name = SELECTION.entries[0].plan.file
    entries = tuple(replace(entry, plan=replace(entry.plan, file=name)) for entry in SELECTION.entries)

    def of(target: str) -> Callable[..., Texts]:
        def make(selection: Selection) -> Texts:
            found = {entry.plan.file: COLLECTIVE_PLAN for entry in selection.entries}
            texts = generate_selection(selection, "selection.json", found, target).files
            return {name: text for name, text in texts.items() if name not in (*found, "selection.json")}

        return make

    generate = {target: of(target) for target in ("nccl-tuner", "msccl-xml", "cuda")}
    hold({"selection": raw(replace(SELECTION, entries=entries))}, {"selection": Selection}, generate, 4)


PROGRAM = """\
from treadle.fusion import *

N = dims("N")
g = Tensor("g", f32, [N], Local)
p = Tensor("p", f32, [N], Replicated)
rate = Scalars("rate", f32)
total = AllReduce("+", g)
new = Update(p, p - rate * Dropout(total, 0.1, "a key"))
program = Execute("descent", [g, p, rate], [new])
"""
FUSED = ("cuda", "torch", "nccl", "nccl-device")


@pytest.fixture(scope="module")
def fused() -> Plan:
    return plan_fusion(FusionProblem(parse(PROGRAM, "program"), Bindings({"N": 64}, 4), profile("dgx2")))


def of_fusion(target: str) -> Callable[..., Texts]:
    def make(plan: Plan) -> Texts:
        texts, facts = generate_fusion(plan.decisions, "plan.json", target, {})
        artefacts = Artefacts(target, InputRef(file="p", digest="-"), texts, None, facts)
        return {name: text for name, text in written(artefacts).items() if not name.startswith("treadle_")}

    return make


def test_fusion_plans(fused: Plan):
    hold({"plan": raw(fused)}, {"plan": Plan}, {target: of_fusion(target) for target in ("cuda", "torch")}, 20)


def test_names_and_keys_inside_programs(fused: Plan):
    """Each text in the schedule, which is a program itself; a key may be anything, and the module reads it back."""
    schedule, kept = fused.decisions.schedule, 0
    constants = [node.value for node in ast.walk(ast.parse(schedule)) if isinstance(node, ast.Constant)]
    for text in dict.fromkeys(value for value in constants if isinstance(value, str)):
        for word in hostile.HOSTILE:
            changed = schedule.replace(json.dumps(text), json.dumps(word))
            assert changed != schedule
            plan = replace(fused, decisions=replace(fused.decisions, schedule=changed))
            for target in FUSED:
                try:
                    texts = of_fusion(target)(plan)
                except TreadleError as error:
                    assert_one_line(error, word)
                    continue
                for (name, made), sound in zip(texts.items(), of_fusion(target)(fused).values(), strict=True):
                    assert hostile.alike(hostile.shape(name, made), hostile.shape(name, sound)), (target, text, word)
                    if name.endswith(".py"):
                        assigned = (node.value for node in ast.parse(made).body if isinstance(node, ast.Assign))
                        read_back = next(assigned).value
                        assert json.dumps(word) in read_back
                        assert parse(read_back, "again") == parse(changed, "changed")
                        kept += 1
    assert kept == len(hostile.HOSTILE), "the key of dropout"


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_documents_that_nothing_is_generated_of(kind: str):
    """Refused in one line, or read to a document whose texts print on one line."""
    document = DOCUMENTS[kind]
    for words, attacked in hostile.attacks({"it": raw(document)}):
        try:
            found = read(attacked, {"it": type(document)})["it"]
        except TreadleError as error:
            assert_one_line(error, words)
        else:
            assert hostile.LINES not in (getattr(found, "name", ""), getattr(found, "entry", ""))
