"""The loops of docs/training-loops.md, run as they stand on the page."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

from treadle.cli.main import run
from treadle.runtime.memory.apply import PlannedModule

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "training-loops.md").read_text()
LOOPS = dict(re.findall(r"^## (.+?)\n.*?^```python\n(.+?)^```", PAGE, re.DOTALL | re.MULTILINE))


def block(pattern: str) -> str:
    (found,) = re.findall(pattern, PAGE, re.DOTALL | re.MULTILINE)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's model, and the plan that the page's commands make of it."""
    place = tmp_path_factory.mktemp("loops")
    (place / "train.py").write_text(block(r"^```python file=train.py\n(.+?)^```"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.syspath_prepend(str(place))
        for line in block(r"^```\n(treadle .+?)^```").splitlines():
            assert run(shlex.split(line)[1:]) == 0
        yield place
    sys.modules.pop("train", None)


@pytest.fixture
def calls(monkeypatch):
    """How often a planned module was called."""
    found = []
    forward = PlannedModule.forward

    def counted(self, *inputs, **keywords):
        found.append(self)
        return forward(self, *inputs, **keywords)

    monkeypatch.setattr(PlannedModule, "forward", counted)
    return found


def losses_of(title: str, planned: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The names that a loop leaves, with its plan or with `treadle.apply` that returns the model itself."""
    with monkeypatch.context() as patch:
        if not planned:
            patch.setattr("treadle.apply", plain)
        torch.manual_seed(0)
        names: dict[str, object] = {}
        exec(compile(LOOPS[title], title, "exec"), names)
    return names


def plain(model: torch.nn.Module, plan: str) -> torch.nn.Module:
    object.__setattr__(model, "model", model)
    return model


CALLED = {
    "A plain loop": (4, "evaluated"),
    "A loop of the Trainer kind": (3, "losses"),
    "A loop of the Lightning kind": (3, "validated"),
}


@pytest.mark.parametrize("title", CALLED)
def test_a_loop_trains_under_its_plan_as_without(title, folder, calls, monkeypatch):
    count, result = CALLED[title]
    without = losses_of(title, False, monkeypatch)[result]
    assert not calls
    assert losses_of(title, True, monkeypatch)[result] == pytest.approx(without, rel=1e-4)
    assert len(calls) == count


def test_a_checkpoint_loads_without_a_plan(folder, monkeypatch):
    names = losses_of("A plain loop", True, monkeypatch)
    model = names["Net"]()
    model.load_state_dict(torch.load("checkpoint.pt")["model"])
    for restored, trained in zip(model.parameters(), names["model"].parameters(), strict=True):
        assert torch.equal(restored, trained)


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="this PyTorch has no gloo")
def test_the_sharded_configuration_trains(folder, calls, monkeypatch, tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        names = losses_of("A configuration of the torchtitan kind", True, monkeypatch)
    finally:
        distributed.destroy_process_group()
    assert len(calls) == 3
    assert all(type(parameter).__name__ == "DTensor" for parameter in names["model"].parameters())


def test_every_loop_of_the_page_is_run():
    assert {*LOOPS} == {*CALLED, "A configuration of the torchtitan kind"}
