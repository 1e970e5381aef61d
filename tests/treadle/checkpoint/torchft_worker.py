"""Two replicas that train with torchft, the second of which joins later: prints who got which state, and whether all
weights are the same at the end."""

import os
import sys
import threading
import time
from datetime import timedelta

import torch
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft._torchft import LighthouseServer

from treadle.checkpoint.torchft import HeldTransport

SECONDS = timedelta(seconds=30)
STEPS = 12


class RecordedTransport(HeldTransport):
    taken = 0

    def recv_checkpoint(self, src_rank, metadata, step, timeout):
        state = super().recv_checkpoint(src_rank, metadata, step, timeout)
        assert state["torchft"]["step"] == step
        self.taken += 1
        return state


def train(number, lighthouse, weights, joined):
    torch.manual_seed(number)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    transport = RecordedTransport(1 << 16, bytes(range(32)), "127.0.0.1")

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=SECONDS),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        replica_id=f"replica {number}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        checkpoint_transport=transport,
        timeout=SECONDS,
        use_async_quorum=False,
    )
    while manager.current_step() < STEPS:
        manager.start_quorum()
        optimizer.zero_grad()
        model(torch.full((1, 3), float(manager.current_step()))).sum().backward()
        for parameter in model.parameters():
            manager.allreduce(parameter.grad).wait()
        if manager.should_commit():
            optimizer.step()
        if number == 0 and manager.current_step() == 3:
            joined.set()
        if manager.num_participants() < 2 and manager.current_step() >= 3:
            time.sleep(0.2)
    weights[number] = (transport.taken, model.weight.detach().clone())


def main():
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100)
    weights, joined = {}, threading.Event()
    first = threading.Thread(target=train, args=(0, lighthouse.address(), weights, joined))
    second = threading.Thread(target=train, args=(1, lighthouse.address(), weights, joined))
    first.start()
    joined.wait(60)
    second.start()
    for each in (first, second):
        each.join(60)
    print(f"taken {weights[0][0]} {weights[1][0]}, same {torch.equal(weights[0][1], weights[1][1])}", flush=True)
    os._exit(0)  # threads of the managers wait for each other


if __name__ == "__main__":
    sys.exit(main())
