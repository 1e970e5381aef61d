"""Where training goes on: the newest version that all ranks can load, from memory, else from storage, else from the
begin."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from torch import distributed

from treadle.checkpoint.connected import RankMemory
from treadle.checkpoint.layout import unpack
from treadle.checkpoint.persistent import PersistentSaves
from treadle.checkpoint.states import TrainingStates
from treadle.planner.errors import CheckFailed, TreadleError

log = logging.getLogger("treadle.checkpoint")
T = TypeVar("T")
ROUNDS = 5
"""How often machines may come or go while a version is looked for."""
Source = Literal["begin", "memory", "storage"]


class Resumed(NamedTuple):
    """The step that training goes on from, where its states came from, and why newer ones could not be taken.
    `holder` says whose memory this rank's state was in."""

    step: int
    source: Source
    holder: str = ""
    passed: tuple[str, ...] = ()


def resume(
    states: TrainingStates, held: RankMemory | None, saves: PersistentSaves | None, group: Any = None
) -> Resumed:
    """Load what all ranks of `group` have; all of them call it together. A version that cannot be loaded on one rank is
    passed over by all: its previous one follows, then that on storage. Raises CheckFailed where storage has
    checkpoints and none can be loaded, so that no training begins again unnoticed."""
    passed: list[str] = []
    found = _from_memory(states, held, group, passed) if held is not None else None
    if found is None and saves is not None:
        found = _from_storage(states, saves, group, passed)
    resumed = (found or Resumed(0, "begin"))._replace(passed=tuple(passed))
    for line in passed:
        log.warning("%s", line)
    if resumed.source != "begin" or passed:
        log.warning("training goes on from step %d (%s)", resumed.step, resumed.source)
    return resumed


def gathered(value: Any, group: Any) -> list[Any]:
    """The values of all ranks; that of this one where there are no others."""
    if group is None:
        return [value]
    values: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, value, group=group)
    return values


def _from_memory(states: TrainingStates, held: RankMemory, group: Any, passed: list[str]) -> Resumed | None:
    """The newest version that all can read. Where machines have come or gone meanwhile, it is looked for anew."""
    for _ in range(ROUNDS):
        epoch = same_epoch(held, group)
        notes: list[str] = []
        found = _newest(held, group, notes)
        if found is not None or not notes:
            break
        held.renew()
        if max(gathered(held.epoch, group)) == epoch:
            break
    passed += notes
    if found is None:
        return None
    version, tree, holder = found
    try:
        states.load(tree)
    except CheckFailed as error:
        text = (
            f"version {version} in memory is that of another training: {error}; to begin anew, start the agents again"
        )
        raise CheckFailed(text) from None
    return Resumed(version, "memory", holder)


def same_epoch(held: RankMemory, group: Any) -> int:
    """The epoch that the agents of all ranks have reached."""
    while True:
        epochs: list[int] = gathered(held.epoch, group)
        if min(epochs) == max(epochs):
            return epochs[0]
        if held.epoch < max(epochs):
            held.renew(max(epochs))


def _newest(held: RankMemory, group: Any, notes: list[str]) -> tuple[int, Any, str] | None:
    offered = gathered(held.versions(), group)
    common, newest = set.intersection(*offered), max(set.union(*offered), default=-1)
    if newest > max(common, default=-1):
        notes.append(f"version {newest} in memory: not all machines have it")
    for version in sorted(common, reverse=True):
        found = _on_all(partial(_read, held, version), f"version {version} in memory", group, notes)
        if found is not None:
            return version, *found
    return None


def _read(held: RankMemory, version: int) -> tuple[Any, str]:
    data, holder = held.read(version)
    kept, tree = unpack(data)
    if kept != version:
        raise CheckFailed(f"found version {kept} in place of {version}")
    return tree, holder


def _from_storage(states: TrainingStates, saves: PersistentSaves, group: Any, passed: list[str]) -> Resumed | None:
    steps = sorted(set.intersection(*gathered(saves.steps(), group)), reverse=True)
    for step in steps:
        if _on_all(partial(_load, saves, step), f"step {step} on storage", group, passed):
            return Resumed(step, "storage")
    if steps:
        raise CheckFailed(f"no checkpoint in {saves.folder} can be loaded: {passed[-1]}; to begin anew, take another")
    return None


def _load(saves: PersistentSaves, step: int) -> bool:
    saves.load(step)
    return True


def _on_all(take: Callable[[], T], what: str, group: Any, passed: list[str]) -> T | None:
    """What `take` returns where it does on all ranks; else None, and why it does not is added to `passed`."""
    result, why = None, None
    try:
        result = take()
    except TreadleError as error:
        why = str(error)
    problems = [(rank, each) for rank, each in enumerate(gathered(why, group)) if each is not None]
    passed += [f"{what}: rank {rank}: {each}" for rank, each in problems]
    return None if problems else result
