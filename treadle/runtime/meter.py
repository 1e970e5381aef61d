"""Peak of live tensor bytes over a block of code, measured.

Every storage counts once, whatever number of tensors view it, from the op that made it until nothing refers to it.
What a kernel allocates and frees inside itself is no tensor and is not counted. The allocator's own peak includes it:
on a CUDA device it is reported too, on a CPU `allocator_peak` measures it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Meter(TorchDispatchMode):
    """`with Meter(model, inputs) as meter: step()`, then `meter.peak_bytes`.

    `existing` is what lives before the block: modules (their parameters, buffers and present gradients), tensors, and
    lists, tuples and dicts of tensors. `peak` breaks the peak down by category, in bytes: parameters, buffers,
    gradients, inputs (other existing tensors) and made (what the block makes). `live_bytes` is what lives now.
    """

    supports_higher_order_operators = True
    """Compiled graphs have calls such as `run_and_save_rng_state`, whose results count like others."""

    def __init__(self, *existing: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[str, int] = {}
        self.peak: dict[str, int] = {}
        self.live_bytes = self.peak_bytes = 0
        self.allocator_peak_bytes: int | None = None
        """The same peak as the CUDA allocator saw it, workspaces and rounding included; None without a CUDA device."""
        self._known: dict[int, tuple[weakref.ref[torch.UntypedStorage], str, int]] = {}
        self._outside = 0
        for item in existing:
            for category, tensor in _tensors_of(item):
                self._see(tensor, category)

    def __enter__(self) -> Meter:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._outside = torch.cuda.memory_allocated() - self.live_bytes
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if torch.cuda.is_available():
            self.allocator_peak_bytes = torch.cuda.max_memory_allocated() - self._outside

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        for leaf in tree_iter(result):
            if isinstance(leaf, Tensor):
                self._see(leaf, "made")
        return result

    def _see(self, tensor: Tensor, category: str) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        known = self._known.get(key)
        if known is not None:
            if known[2] != size:
                self._known[key] = (known[0], known[1], size)
                self._add(known[1], size - known[2])
            return
        self._known[key] = (weakref.ref(storage, lambda _: self._forget(key)), category, size)
        self._add(category, size)

    def _forget(self, key: int) -> None:
        _, category, size = self._known.pop(key)
        self._add(category, -size)

    def _add(self, category: str, change: int) -> None:
        self.live[category] = self.live.get(category, 0) + change
        self.live_bytes += change
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak = self.live_bytes, dict(self.live)


def allocator_peak(run: Callable[[], Any], *existing: Any) -> int:
    """Most bytes that PyTorch's CPU allocator has handed out at once while `run` runs, those inside kernels included;
    `existing` as for `Meter`, gradients included. The profiler records every allocation, which makes `run` slower."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes a line for each start and stop
    live = peak = Meter(*existing).live_bytes
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        run()
    events = profile.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    for _, change in sorted(changes, key=lambda change: change[0]):
        live += change
        peak = max(peak, live)
    return peak


def _tensors_of(item: Any) -> Iterator[tuple[str, Tensor]]:
    if not isinstance(item, nn.Module):
        yield from (("inputs", leaf) for leaf in tree_iter(item) if isinstance(leaf, Tensor))
        return
    for parameter in item.parameters():
        yield "parameters", parameter
        if parameter.grad is not None:
            yield "gradients", parameter.grad
    yield from (("buffers", buffer) for buffer in item.buffers())
