"""Ranks that save a state with NVRx in the groups of a plan: `python nvrx_worker.py FOLDER RANKS`."""

import importlib.util
import multiprocessing
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager


class StateInHostMemory(BasicTensorAwareStateDict):
    """NVRx's own refuses tensors that are not on a GPU."""

    def __init__(self, state_dict):
        self.state_dict, self._is_hollow = state_dict, False

    def restore_tensor_device(self, non_blocking=True):
        """Tensors stay where they are."""


def train(folder: Path, rank: int, ranks: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{folder}/store")
    spec = importlib.util.spec_from_file_location("replication", folder / "replication.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    strategy = made.strategy(backend="gloo")
    manager = LocalCheckpointManager(folder / "states", repl_strategy=strategy)
    manager.save(StateInHostMemory({"weight": state_of(rank), "step": 7}), 7)
    held = manager._my_ckpt_ids()
    for number in held:
        state = manager._load(number).state_dict
        assert torch.equal(state["weight"], state_of(number[1])), number
    print(rank, "holds", sorted(number[1] for number in held), "whole", flush=True)
    fresh = LocalCheckpointManager(folder / "states", repl_strategy=strategy)
    group = list(strategy.local_group.ranks)
    if rank == min(group):
        for path in fresh.local_ckpt_dir.iterdir():
            path.unlink()
    dist.barrier()
    assert fresh.find_latest() == 7
    plan = strategy.retrieve_plan(fresh.globally_available_ids, [(7, rank, "")])
    senders = {entry.receiver: entry.sender for entry in plan.entries}
    assert all(senders[other] == other for other in group[1:])
    others = [other for other in group if other != group[0]]
    assert senders[group[0]] in others
    print(f"{group[0]} comes from one of {others}", flush=True)


def state_of(rank: int) -> torch.Tensor:
    return torch.full((1000,), float(rank)) + torch.arange(1000)


def main(folder: Path, ranks: int) -> None:
    """Forked, since importing takes longer than all the rest."""
    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=train, args=(folder, rank, ranks)) for rank in range(ranks)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    sys.exit(any(process.exitcode for process in started))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
