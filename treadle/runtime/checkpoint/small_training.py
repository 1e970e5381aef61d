"""A small training for `treadle run`: the same losses bit by bit each time, on as many ranks as a plan has."""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import distributed, nn, optim
from torch.nn.parallel import DistributedDataParallel

from treadle.checkpoint import attach
from treadle.checkpoint.connected import RankMemory
from treadle.checkpoint.layout import Packer
from treadle.checkpoint.messages import count_messages
from treadle.checkpoint.pacing import IterationTimes, MessageCount
from treadle.checkpoint.resume import Resumed
from treadle.checkpoint.states import TrainingStates
from treadle.checkpoint.training import Checkpoints
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.spans import Iteration, Sending
from treadle.runtime.launch import send

LAYERS, SAMPLES, STATES_PER_WEIGHT = 4, 512, 12
"""Bytes that a weight takes with its states of Adam."""
WARM_UP = 3
"""Iterations in which DistributedDataParallel finds its buckets."""
ROUNDS = 3
"""In which runs with and without checkpoints take turns, so that both have the same share of a busy machine."""
TURN_SECONDS = 0.02
MARGIN_BYTES = 4096
"""What the header of a state may grow by."""


class SmallTraining:
    """A model under DistributedDataParallel whose states take about `state_bytes` on each rank."""

    def __init__(self, rank: int, state_bytes: int) -> None:
        torch.manual_seed(0)
        width = max(16, math.isqrt(state_bytes // STATES_PER_WEIGHT // LAYERS))
        layers = [each for _ in range(LAYERS) for each in (nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1))]
        weights = 4 * width * (width + 1)
        self.width, self.rank = width, rank
        model = nn.Sequential(*layers)
        # With one that is unused the first iteration has the buckets of all others, and so adds the gradients of ranks
        # in the same order, also in a process that was started again.
        model.register_parameter("unused", nn.Parameter(torch.zeros(1)))
        cap = 1.5 * weights / 2**20
        self.model = DistributedDataParallel(model, bucket_cap_mb=cap, find_unused_parameters=True)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-3)
        self.states = TrainingStates(self.model, self.optimizer, {})
        torch.manual_seed(1 + rank)

    def step(self) -> float:
        """A batch of random numbers, forward, backward, update."""
        loss = self.model(torch.randn(SAMPLES, self.width)).sub(0.5).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


class PlainRun(NamedTuple):
    """What a rank found without checkpoints."""

    losses: list[float]
    iterations: list[Iteration]
    state_bytes: int


class VariantRun(NamedTuple):
    """What a rank found with the checkpoints of one variant; times in ns of each iteration, `kept_ns` to begin its
    checkpoint. `equal` pieces of the last version were the same bytes on their holders as on this rank."""

    losses: list[float]
    iteration_ns: list[int]
    kept_ns: list[int]
    drained_ns: list[int]
    pieces: int
    equal: int


class MeasuredRuns(NamedTuple):
    """What a rank found in rounds: each trains without checkpoints, and then with those of each variant."""

    plain: list[PlainRun]
    variants: list[list[VariantRun]]


class GivenVariants(msgspec.Struct, frozen=True):
    """What ranks measure, once the process that launched them has planned it, and the access files of memory."""

    variants: list[CheckpointDecisions]
    access: list[str]


class GivenAgents(msgspec.Struct, frozen=True):
    """The plan of agents, and their access files."""

    plan: str
    access: list[str]


def train_in_stages(
    rank: int, world: int, state_bytes: int, total: int, devices: int, variants: Path, agents: Path
) -> None:
    """Train without checkpoints, then with the `variants` of this file once it is there, then with the `agents`, until
    the parent kills it, which gets what is found. One process does it all, since PyTorch takes seconds to load."""
    logging.getLogger("treadle.checkpoint").setLevel(logging.ERROR)  # spans of processes that share cores vary
    train_plainly(rank, world, state_bytes, total)  # a process is slower at first
    send(("plain", rank, train_plainly(rank, world, state_bytes, total)))
    given = msgspec.json.decode(_awaited(variants), type=GivenVariants)
    found = MeasuredRuns([], [[] for _ in given.variants])
    for _ in range(ROUNDS):
        found.plain.append(train_plainly(rank, world, state_bytes, total))
        for each, runs in zip(given.variants, found.variants, strict=True):
            runs.append(_train_variant(rank, state_bytes, total, each, given.access))
    send(("measured", rank, found))
    train_attached(rank, world, state_bytes, total, devices, msgspec.json.decode(_awaited(agents), type=GivenAgents))
    while True:
        time.sleep(TURN_SECONDS)


def _awaited(file: Path) -> bytes:
    """What the parent writes there whole."""
    while not file.exists():
        time.sleep(TURN_SECONDS)
    return file.read_bytes()


def train_plainly(rank: int, world: int, state_bytes: int, total: int) -> PlainRun:
    """`total` iterations without checkpoints."""
    training = SmallTraining(rank, state_bytes)
    count = MessageCount(lambda number: None, lambda number: None)
    stop = count_messages(training.model, count)
    times: list[IterationTimes] = []
    hook = training.optimizer.register_step_pre_hook(lambda *_: times.append(count.end()))
    losses, ends = [], []
    for _ in range(total):
        count.start()
        losses.append(training.step())
        ends.append(time.monotonic_ns())
    hook.remove()
    stop()
    packed = Packer().pack(total, training.states.tree(total))
    found = [_iteration(each, end) for each, end in zip(times, ends, strict=True)]
    return PlainRun(losses, found[WARM_UP:], packed.bytes + MARGIN_BYTES)


def _iteration(times: IterationTimes, end: int) -> Iteration:
    messages = [
        Sending("allreduce", start - times.begin, done - times.begin)
        for start, done in zip(times.began, times.done, strict=True)
    ]
    return Iteration(tuple(messages), times.end - times.begin, end - times.begin)


def _train_variant(
    rank: int, state_bytes: int, total: int, decisions: CheckpointDecisions, access: list[str]
) -> VariantRun:
    training = SmallTraining(rank, state_bytes)
    group = distributed.new_group(backend="gloo")
    memory = RankMemory(access[rank // decisions.problem.devices], decisions, rank, planned_alike=True)
    checkpoints = Checkpoints(training.states, decisions, memory, None, Resumed(0, "begin"), group)
    checkpoints.start([count_messages(training.model, checkpoints.count)])
    losses, ends, kept, drained = [], [], [], []
    sent = torch.empty(0)
    for step in checkpoints.steps(total):
        if step == total - 1:  # before the update changes them
            sent = torch.cat(Packer().pack(step, training.states.tree(step)).parts)
        losses.append(training.step())
        ends.append(time.monotonic_ns())
        kept.append(checkpoints.statistics().kept_ns)
        drained.append(checkpoints.statistics().drained_ns)
    distributed.barrier()  # all versions are whole
    pieces, equal = compared(memory, total - 1, sent)
    distributed.barrier()
    checkpoints.close()
    times = [end - start for start, end in zip(ends[WARM_UP - 1 :], ends[WARM_UP:-1], strict=False)]
    return VariantRun(losses, times, kept[WARM_UP:], drained[WARM_UP:], pieces, equal)


def compared(memory: RankMemory, version: int, sent: torch.Tensor) -> tuple[int, int]:
    """How many pieces of a version its holders have, and how many of them have the bytes that were sent."""
    pieces = equal = 0
    decisions = memory.decisions
    for copy, holder in enumerate(memory.holders):
        held = memory.copy_of(holder, version)
        planned = [(each.offset, each.bytes) for each in decisions.pieces if each.copy == copy]
        for offset, length in planned or [(each.offset, each.bytes) for each in decisions.own]:
            part = sent[offset : offset + length]
            pieces += bool(len(part))
            equal += bool(len(part)) and torch.equal(held[offset : offset + len(part)], part)
    return pieces, equal


class AttachedRun(NamedTuple):
    """Where a rank's training went on, and its losses from there."""

    resumed: Resumed
    losses: list[float]


def train_attached(
    rank: int, world: int, state_bytes: int, total: int, devices: int, agents: GivenAgents
) -> AttachedRun:
    """Train to the last iteration from where the checkpoints are. Sent to the parent, with the time: this process's
    number once the states are there, and each loss."""
    logging.getLogger("treadle.checkpoint").setLevel(logging.ERROR)
    training = SmallTraining(rank, state_bytes)
    losses: list[float] = []
    access = agents.access[rank // devices]
    with attach(training.model, training.optimizer, agents.plan, agent=access) as checkpoints:
        send(("attached", rank, (os.getpid(), time.monotonic_ns())))
        for step in checkpoints.steps(total):
            losses.append(training.step())
            send(("step", rank, (step, losses[-1], time.monotonic_ns())))
    return AttachedRun(checkpoints.resumed, losses)
