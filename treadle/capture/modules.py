"""Names of the calling modules on the nodes of a graph that is being traced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import fx, nn
from torch.fx import traceback

_MODULES = "treadle modules"


@contextmanager
def module_names(model: nn.Module) -> Iterator[None]:
    """Nodes that calls of `model` make inside the block carry the names of the calling modules, see `modules_of`."""
    calling: list[str] = []
    calls: Counter[str] = Counter()

    def annotate() -> None:
        annotations = traceback.current_meta.get("custom", {})
        traceback.current_meta["custom"] = {**annotations, _MODULES: tuple(calling)}

    def enter(name: str, *_: Any) -> None:
        calls[name] += 1
        calling.append(name if calls[name] == 1 else f"{name}#{calls[name]}")
        annotate()

    def leave(*_: Any) -> None:
        calling.pop()
        annotate()

    hooks = []
    for name, module in model.named_modules():
        if name:
            hooks.append(module.register_forward_pre_hook(partial(enter, name), prepend=True))
            hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        with traceback.preserve_node_meta():
            yield
    finally:
        for hook in hooks:
            hook.remove()


def modules_of(node: fx.Node) -> tuple[str, ...]:
    """The modules inside whose forward passes this call is made (`treadle.planner.documents.trace.Op.modules`)."""
    names: tuple[str, ...] = node.meta.get("custom", {}).get(_MODULES, ())
    return names
