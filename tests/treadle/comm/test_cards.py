"""Claims of jobs on one GPU: what does not fit together is refused, what ends leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import secrets
from multiprocessing.connection import Connection

import pytest

from treadle.comm.cards import CardClaim, claims
from treadle.planner.errors import InputError


def other_job(card: str, share: float, pipe: Connection) -> None:
    claim = CardClaim(card)
    claim.extend(share)
    pipe.send("claimed")
    pipe.recv()


def test_two_jobs_that_do_not_fit_on_one_gpu_are_refused_by_name() -> None:
    card = f"GPU-{secrets.token_hex(8)}"
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    job = context.Process(target=other_job, args=(card, 0.6, there), daemon=True)
    job.start()
    assert here.recv() == "claimed"
    claim = CardClaim(card)
    claim.extend(0.25)
    claim.extend(0.1)  # programs of one job run one after the other
    with pytest.raises(InputError) as refused:
        claim.extend(0.5)
    assert str(refused.value) == (
        f"{card}: the kernels of this program take 50% of it at once and those of process {job.pid} 60%: jobs that do "
        "not fit together could wait for each other forever; give each job GPUs of its own, or plan with fewer "
        "--instances"
    )
    assert claims(card) == {job.pid: 0.6}
    assert claims(f"{card}0") == {}
    here.send("end")
    job.join(10)
    claim.extend(0.5)
    claim.close()


def test_a_fork_keeps_no_claim() -> None:
    """As a worker of a DataLoader that outlives its parent."""
    card = f"GPU-{secrets.token_hex(8)}"
    claim = CardClaim(card)
    claim.extend(0.7)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    worker = context.Process(target=lambda: (there.send("forked"), there.recv()), daemon=True)
    worker.start()
    assert here.recv() == "forked"
    claim.close()
    jobs = context.Process(target=lambda: os._exit(len(claims(card))))
    jobs.start()
    jobs.join(10)
    assert jobs.exitcode == 0
    here.send("end")
    worker.join(10)
