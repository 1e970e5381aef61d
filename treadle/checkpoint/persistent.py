"""Checkpoints on storage by torch.distributed.checkpoint, which any of its readers loads: `model` and `optimizer` by
the names of parameters, as its own `get_state_dict` names them, and for each rank what else it needs to go on."""

from __future__ import annotations

import logging
import re
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from treadle.checkpoint.layout import Packer, unpack
from treadle.checkpoint.states import TrainingStates
from treadle.planner.errors import CheckFailed, InputError

log = logging.getLogger("treadle.checkpoint")
STEP = re.compile(r"step-(\d{9})")
ALONE = "torch.distributed is disabled, unavailable or uninitialized, assuming the intent is to"
"""How PyTorch's warning begins that a training of one process is one, which it gives even where `no_dist` says so."""
INTERVAL_NS = 3 * 3600 * 10**9
"""Where the plan has none: that of the evaluation of "GEMINI: Fast Failure Recovery in Distributed Training with
In-Memory Checkpoints"."""


class PersistentSaves:
    """Checkpoints of a training in folders of `folder`, one for each saved step. All ranks make it, save and load
    together."""

    def __init__(self, folder: Path, interval_ns: int, states: TrainingStates) -> None:
        self.folder, self.interval_ns, self.states = folder, interval_ns, states
        together = distributed.is_initialized()
        self.rank = distributed.get_rank() if together else 0
        # A thread writes over it while training goes on, so nothing else may be sent over it.
        self.group: Any = distributed.new_group(backend="gloo") if together else None
        if not together:  # for good, since a thread of PyTorch gives it
            warnings.filterwarnings("ignore", re.escape(ALONE), UserWarning)
        self._last_ns = time.monotonic_ns()
        self._pending: Any = None

    def due(self) -> bool:
        """Whether the last save is an interval ago."""
        return time.monotonic_ns() - self._last_ns >= self.interval_ns

    def save(self, step: int) -> None:
        """Copy the states after update `step`, and write them while training goes on."""
        self.wait()
        self._last_ns = time.monotonic_ns()
        place = self.folder / f"step-{step:09d}"
        self._pending = async_save(
            self._tree(step), checkpoint_id=place, process_group=self.group, no_dist=self.group is None
        )

    def wait(self) -> None:
        """Until the last save is on storage. Raises CheckFailed where it could not be written."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.result()
        except (Exception, CheckpointException) as error:
            raise CheckFailed(f"cannot write a checkpoint to {self.folder}: {error}") from error

    def steps(self) -> set[int]:
        """The steps that were saved whole: their folders have metadata, which is written last."""
        if not self.folder.is_dir():
            return set()
        found = ((each, STEP.fullmatch(each.name)) for each in self.folder.iterdir())
        return {int(match[1]) for each, match in found if match and (each / ".metadata").is_file()}

    def load(self, step: int) -> None:
        """Go on from a saved step. Raises CheckFailed where it is of another model or number of ranks."""
        place = self.folder / f"step-{step:09d}"
        reader = FileSystemReader(place)
        own = f"rank-{self.rank}"
        try:
            known = reader.read_metadata()
            remainder = _like(known, f"treadle.{own}")
            if remainder is None:
                raise CheckFailed(f"{place} has no states of {own.replace('-', ' ')}; it is of fewer ranks")
            names = self._names()
            optimizer = {name: _states_of(known, name, each) for name, each in names.items()}
            states = {name: each for name, each in optimizer.items() if each}
            tree: dict[str, Any] = {
                "model": {name: each.detach() for name, each in names.items()},
                "optimizer": {"state": states},
                "treadle": {own: remainder},
            }
            load(tree, storage_reader=reader, process_group=self.group, no_dist=self.group is None)
        except CheckFailed:
            raise
        except (Exception, CheckpointException) as error:  # which is no Exception
            raise CheckFailed(f"cannot load {place}: {' '.join(str(error).split())[:500]}") from error
        self.states.load_named(states, _unpacked(remainder))

    def _tree(self, step: int) -> dict[str, Any]:
        names = self._names()
        numbers = {id(each): name for name, each in names.items()}
        optimizer = self.states.optimizer
        groups = [
            {**group, "params": [numbers[id(each)] for each in group["params"]]} for group in optimizer.param_groups
        ]
        remainder = {**self.states.remainder(step), "groups": self.states.groups()}
        return {
            "model": {name: each.detach() for name, each in names.items()} | self._buffers(),
            "optimizer": {
                "state": {numbers[id(each)]: dict(state) for each, state in optimizer.state.items()},
                "param_groups": groups,
            },
            "treadle": {f"rank-{self.rank}": torch.cat(Packer().pack(step, remainder).parts)},
        }

    def _names(self) -> dict[str, Tensor]:
        return dict(self.states.module.named_parameters())

    def _buffers(self) -> dict[str, Tensor]:
        kept = self.states.module.state_dict()
        return {name: kept[name] for name, _ in self.states.module.named_buffers() if name in kept}


def require_writable(folder: Path) -> None:
    """Make a folder for saves where it is not there. Raises InputError where nothing can be written into it, now rather
    than after an interval."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", where=str(folder)) from error


def _unpacked(data: Tensor) -> Mapping[str, Any]:
    _, tree = unpack(data)
    found: Mapping[str, Any] = tree
    return found


def _states_of(known: Metadata, name: str, parameter: Tensor) -> dict[str, Any]:
    """What to load the states of a parameter into."""
    prefix = f"optimizer.state.{name}."
    keys = [key for key in known.state_dict_metadata if key.startswith(prefix)]
    return {key.removeprefix(prefix): _like(known, key, parameter) for key in keys}


def _like(known: Metadata, key: str, parameter: Tensor | None = None) -> Any:
    """Memory for the value of a key: a tensor, sharded as the parameter is where it has its shape. None for what is no
    tensor or is not there."""
    found = known.state_dict_metadata.get(key)
    if not isinstance(found, TensorStorageMetadata):
        return None
    dtype = found.properties.dtype
    if parameter is None or found.size != parameter.shape:
        return torch.empty(found.size, dtype=dtype)
    return torch.empty_like(parameter.detach(), dtype=dtype)
