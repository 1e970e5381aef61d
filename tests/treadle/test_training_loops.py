"""The loops of docs/training-loops.md, run as they stand on the page."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from treadle.cli.main import run
from treadle.runtime.planned_module import PlannedModule

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "training-loops.md").read_text()
LOOPS = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.+?)^```", PAGE, re.DOTALL | re.MULTILINE))


def block(pattern: str) -> str:
    (found,) = re.findall(pattern, PAGE, re.DOTALL | re.MULTILINE)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the page's model and a cache of its own, and the plan that the page's commands make of it."""
    place = tmp_path_factory.mktemp("loops")
    (place / "train.py").write_text(block(r"^```python file=train.py\n(.+?)^```"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.syspath_prepend(str(place))
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        for line in block(r"^```\n(treadle .+?)^```").splitlines():
            assert run(shlex.split(line)[1:]) == 0
        yield place
    sys.modules.pop("train", None)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[PlannedModule]:
    """The planned modules that training calls reached."""
    found = []
    forward = PlannedModule.forward

    def counted(self: PlannedModule, *inputs: Any, **keywords: Any) -> Any:
        found.append(self)
        return forward(self, *inputs, **keywords)

    monkeypatch.setattr(PlannedModule, "forward", counted)
    return found


def names_of(text: str, monkeypatch: pytest.MonkeyPatch, *, planned: bool = True) -> dict[str, Any]:
    """The names that a loop leaves, with its plan or with the model itself in its place."""
    with monkeypatch.context() as patch:
        if not planned:
            patch.setattr("treadle.apply", lambda model, plan: model)
            patch.setattr("treadle.fit", lambda model, batch, **settings: model)
        names: dict[str, Any] = {}
        exec(compile(text, "page", "exec"), names)
    return names


RESULTS = {
    "A plain loop": ("evaluated", "losses"),
    "A loop of the Trainer kind": ("losses",),
    "A loop of the Lightning kind": ("validated",),
    "A plan made ahead": ("evaluated",),
}
SHARDED = "A configuration of the torchtitan kind"


@pytest.mark.parametrize("title", RESULTS)
def test_a_loop_trains_under_its_plan_as_without(
    title: str, folder: Path, calls: list[PlannedModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = names_of(LOOPS[title], monkeypatch, planned=False)
    assert not calls
    planned = names_of(LOOPS[title], monkeypatch)
    assert len(calls) >= 3
    for name in RESULTS[title]:
        assert planned[name] == pytest.approx(plain[name], rel=1e-3), name


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("saved_planned", [True, False])
def test_a_checkpoint_resumes_with_a_plan_and_without(
    planned: bool, saved_planned: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses are those of training that was not interrupted."""
    first = LOOPS["A plain loop"].replace("losses = train(model, optimizer, batches(4))", "")
    resume = block(r"^```python resume\n(.+?)^```")
    names = names_of(first, monkeypatch, planned=saved_planned)
    assert [*names["model"].state_dict()] == [*names["Net"]().state_dict()]
    torch.manual_seed(2)
    expected = names["train"](names["model"], names["optimizer"], names["batches"](4))
    functions = first[: first.index("torch.manual_seed(0)")]
    resumed = names_of(functions + resume, monkeypatch, planned=planned)["resumed"]
    assert resumed == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("title", "file", "prefix"),
    [
        ("A loop of the Trainer kind", "trainer.pt", ""),
        ("A loop of the Lightning kind", "task.pt", "model."),
    ],
)
def test_checkpoints_of_trainers_have_the_names_of_the_model(
    title: str, file: str, prefix: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: nn.Module = names_of(LOOPS[title], monkeypatch)["Net"]()
    saved = torch.load(file)
    assert [*saved] == [prefix + name for name in model.state_dict()]
    model.load_state_dict({name.removeprefix(prefix): value for name, value in saved.items()})


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="this PyTorch has no gloo")
def test_the_sharded_configuration_trains(
    folder: Path, calls: list[PlannedModule], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        plain = names_of(LOOPS[SHARDED], monkeypatch, planned=False)
        assert not calls
        names = names_of(LOOPS[SHARDED], monkeypatch)
    finally:
        distributed.destroy_process_group()
    assert len(calls) >= 3
    assert [x.item() for x in names["losses"]] == pytest.approx([x.item() for x in plain["losses"]], rel=1e-3)
    assert all(type(parameter).__name__ == "DTensor" for parameter in names["model"].parameters())


def test_every_loop_of_the_page_is_run() -> None:
    assert {*LOOPS} == {*RESULTS, SHARDED}
    assert PAGE.count("```python\n") == len(LOOPS)
