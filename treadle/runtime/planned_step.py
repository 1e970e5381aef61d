"""A generated step as an object."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from treadle.capture.operator_calls import operator
from treadle.codegen.emit import text_digest
from treadle.codegen.python_form import require_form
from treadle.planner.documents.values import Called
from treadle.planner.errors import InputError
from treadle.runtime.called import load_called, places


@dataclass(frozen=True)
class PlannedStep:
    """The names of a generated module. Pickled as its text, which is executed again."""

    name: str
    text: str
    forward: Callable[..., tuple[list[Tensor], dict[str, Tensor]]]
    backward: Callable[..., Iterator[str]]
    parameters: dict[str, list[Any]]
    buffers: dict[str, list[Any]]
    inputs: list[list[Any]]
    tangents: list[int]
    gradients: list[str]
    together: list[list[str]]
    """The gradients in groups that are handed over at once."""
    frozen: list[str]
    evaluating: list[str]
    autocast: str | None
    partial: dict[str, list[int]]
    scales: list[list[str]]
    reread: list[str]
    untrained: list[int]
    """Outputs next to a loss, to which a backward pass may not come."""
    returned: Callable[[list[Tensor]], Any]
    called: Called | None
    """What the step is called with, over the numbers of its inputs; None for the inputs in their order."""
    places: list[str]
    """What errors call each input."""

    def __reduce__(self) -> tuple[Any, ...]:
        return load_step, (self.text, self.name)


def require_operators(text: str, where: str) -> None:
    """Raise InputError, which names the line, where the Python `text` of a step calls what is no operator."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            target = ast.unparse(node.func).removeprefix("torch.ops.")
            if target != ast.unparse(node.func) or target.startswith("aten."):
                try:
                    operator(target)
                except InputError as error:
                    raise InputError(str(error), where=f"{where}:{node.lineno}") from error


def load_step(text: str, name: str) -> PlannedStep:
    """Execute the text of a generated module; its lines show up in tracebacks under `name`. Raises InputError for a
    text that treadle does not generate, or that calls what this PyTorch does not have."""
    return step_of(names_of("torch", text, name), text, name)


def names_of(target: str, text: str, name: str) -> dict[str, Any]:
    """What the text of a step generated for `target` defines. Raises as `load_step`."""
    require_form(target, text, f"the step of {name}")
    require_operators(text, f"the step of {name}")
    file = f"<treadle step of {name} {text_digest(text)[-8:]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {}
    exec(compile(text, file, "exec"), names)
    return names


def step_of(names: dict[str, Any], text: str, name: str) -> PlannedStep:
    """The step whose constants and functions are `names`."""
    called = load_called(names.get("CALLED"), len(names["INPUTS"]), name)
    constants = ("PARAMETERS", "BUFFERS", "INPUTS", "TANGENTS", "GRADIENTS", "FROZEN", "EVALUATING")
    return PlannedStep(
        name=name,
        text=text,
        forward=names["forward"],
        backward=names["backward"],
        **{key.lower(): names[key] for key in constants},
        together=_groups(name, names["GRADIENTS"], names.get("HANDED", names["GRADIENTS"])),
        autocast=names.get("AUTOCAST"),
        partial=names.get("PARTIAL", {}),
        scales=names.get("SCALES", []),
        reread=names.get("REREAD", []),
        untrained=names.get("UNTRAINED", []),
        returned=names["returned"],
        called=called,
        places=places(called, len(names["INPUTS"])),
    )


def _groups(step: str, gradients: Sequence[str], last: Sequence[str]) -> list[list[str]]:
    """`gradients` cut after each one in `last`. Raises InputError for cuts that would lose or repeat gradients."""
    if list(last) != [name for name in gradients if name in set(last)] or last[-1:] != gradients[-1:]:
        raise InputError(f"found HANDED {last}, expected some of GRADIENTS in its order, with its last one", where=step)
    cuts = [0, *(gradients.index(name) + 1 for name in last)]
    return [list(gradients[a:b]) for a, b in pairwise(cuts)]
