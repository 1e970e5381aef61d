"""A worker whose server is a few lines of PyTorch in the same process: what the compiled one must do, and a double for
tests of what stands in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor, nn, optim

from treadle.planner.passes.server.keys import ServerKey
from treadle.planner.passes.server.problem import STATES, OptimizerName
from treadle.runtime.server.messages import JobLayout, LayoutKey
from treadle.runtime.server.worker import ServerState
from treadle.server import Lamb
from treadle.server.optimizers import STATE_NAMES

LINE = 64
Numbers = Any
MAKES: dict[OptimizerName, Callable[[list[Tensor], Numbers], optim.Optimizer]] = {
    "sgd": lambda given, n: optim.SGD(given, n[0], n[1], n[2], n[3], False, maximize=bool(n[7])),
    "nesterov": lambda given, n: optim.SGD(given, n[0], n[1], n[2], n[3], True, maximize=bool(n[7])),
    "adam": lambda given, n: optim.Adam(
        given, n[0], (n[4], n[5]), n[6], n[3], maximize=bool(n[7]), decoupled_weight_decay=bool(n[9])
    ),
    "lamb": lambda given, n: Lamb(given, n[0], (n[4], n[5]), n[6], n[3]),
}


class ReferenceWorker:
    """Worker 0 of a job; `others` are the gradients of the other workers in each step, by key."""

    def __init__(self, layout: JobLayout, others: Iterable[list[Tensor]] = ()) -> None:
        self.layout, self.worker, self.step, self.loads = layout, 0, layout.step + 1, layout.loads
        self.others = [*others]
        keys = [ServerKey(name=key.name, elements=key.elements, dtype=key.dtype) for key in layout.keys]
        self._gradients, self._values = (
            [np.zeros(-(-key.bytes // LINE) * LINE, np.uint8)[: key.bytes] for key in keys] for _ in range(2)
        )
        self.weights = [nn.Parameter(torch.zeros(key.elements)) for key in keys]
        self.states: list[dict[str, Tensor]] = [{} for _ in keys]
        self.pushed: dict[int, bool] = {}
        self.sent: list[Numbers] = []
        self.closed = False

    def gradient(self, key: int) -> Any:
        return self._gradients[key]

    def value(self, key: int) -> Any:
        return self._values[key]

    def settings(self, numbers: Numbers) -> None:
        if not self.sent or not np.array_equal(self.sent[-1], numbers):
            self.sent.append(numbers.copy())

    def push_pull(self, key: int, *, empty: bool = False) -> None:
        assert key not in self.pushed
        self.pushed[key] = empty

    def finish(self) -> None:
        assert sorted(self.pushed) == [*range(len(self.weights))]
        for key, empty in self.pushed.items():
            if not empty or self.others:
                self._update(key, empty)
            into = self._viewed(self._values, key)
            into.copy_(self.weights[key].detach())
        self.pushed.clear()
        self.step += 1

    def await_first_load(self) -> None:
        self.loads = max(self.loads, 1)

    def load(self, state: ServerState) -> None:
        sizes = [each.numel() for each in self.weights]
        rows = [torch.from_numpy(each).split(sizes) for each in (state.weights, *state.states)]
        names = STATE_NAMES[self.layout.optimizer]
        for key, (updates, weights, *states) in enumerate(zip(state.updates.tolist(), *rows, strict=True)):
            self.weights[key].data = weights.clone()
            self.states[key] = dict(zip(names, (each.clone() for each in states), strict=True)) if updates else {}
            if updates and len(names) > 1:
                self.states[key]["step"] = torch.tensor(float(updates))
        self.loads += 1

    def read(self) -> ServerState:
        names = STATE_NAMES[self.layout.optimizer]
        states = [
            torch.cat([state.get(name, torch.zeros_like(each)).detach() for each, state in self._kept()]).numpy()
            for name in names
        ]
        assert len(states) == STATES[self.layout.optimizer]
        updates = [int(state["step"]) if "step" in state else int(bool(state)) for state in self.states]
        return ServerState(torch.cat([each.detach() for each in self.weights]).numpy(), states, np.array(updates))

    def close(self, trained: bool = True) -> None:
        self.closed = True

    def _kept(self) -> Iterable[tuple[nn.Parameter, dict[str, Tensor]]]:
        return zip(self.weights, self.states, strict=True)

    def _viewed(self, buffers: list[Any], key: int) -> Tensor:
        return torch.from_numpy(buffers[key]).view(getattr(torch, self.layout.keys[key].dtype))

    def _update(self, key: int, empty: bool) -> None:
        weight, total = self.weights[key], self._viewed(self._gradients, key).float()
        if empty:
            total = torch.zeros_like(total)
        for other in self.others:
            total = total + other[key].reshape(-1)
        weight.grad = total / (1 + len(self.others))
        local = MAKES[self.layout.optimizer]([weight], self.sent[-1][self.layout.keys[key].group].tolist())
        local.state[weight] = self.states[key]
        local.step()
        self.states[key] = {name: each for name, each in local.state[weight].items() if each is not None}


def layout_of(model: nn.Module, optimizer: OptimizerName, workers: int = 1, **changes: Any) -> JobLayout:
    """One server with one slot, a chunk for each parameter, and a group of settings for each."""
    named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    keys = tuple(
        LayoutKey(name, each.numel(), str(each.dtype).removeprefix("torch."), group)  # type: ignore[arg-type]
        for group, (name, each) in enumerate(named)
    )
    layout = JobLayout(
        plan="", server=0, servers=1, rack=0, slot_servers=(0,), slots=(0,), addresses=(), rings=False, session=0,
        workers=workers, racks=1, two_level=False, keys=keys, chunk_bytes=1 << 20,
        places=tuple((0,) for _ in keys), optimizer=optimizer, synchronous=True, groups=len(keys), step=0, loads=0,
    )  # fmt: skip
    return replace(layout, **changes)
