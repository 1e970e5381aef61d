"""treadle's compressors in the steps of groups, on ranks that are threads: one result on all ranks, and what an
iteration loses comes in later ones."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.treadle.runtime.compression.plans import decisions_of
from tests.treadle.runtime.compression.threads import Shared
from treadle.planner.errors import InputError
from treadle.runtime.compression.at_once import kept_bytes
from treadle.runtime.compression.coders import KernelCoders, OnHost
from treadle.runtime.compression.group_run import Grid
from treadle.runtime.compression.setup import run_of

ELEMENTS, ITERATIONS = 601, 30
SUMMED = ("reduce-scatter@intra", "compress@device", "allreduce@inter", "decompress@host", "allgather@intra")
MERGED = ("reduce-scatter@intra", "allreduce@inter", "compress@host", "allgather@intra", "decompress@device")
DIVIDED = ("compress@device", "alltoall@intra", "alltoall@inter", "decompress@device", "compress@device",
           "allgather@inter", "allgather@intra", "decompress@device")  # fmt: skip
GATHERED = ("compress@device", "gather@intra", "decompress@device", "compress@host", "allgather@inter",
            "broadcast@intra", "decompress@host")  # fmt: skip
FLAT = ("compress@device", "allgather@flat", "decompress@device")
CASES = [
    *(("fp16", steps) for steps in (SUMMED, DIVIDED)),
    ("bf16", SUMMED),
    *(("randomk:0.5", steps) for steps in (SUMMED, MERGED, DIVIDED, GATHERED, FLAT)),
    ("powersgd:4", SUMMED),
    *(("topk:0.3", steps) for steps in (MERGED, DIVIDED, GATHERED)),
    ("dgc:0.3", FLAT),
    *(("qsgd", steps) for steps in (MERGED, GATHERED)),
    *(("onebit", steps) for steps in (MERGED, DIVIDED)),
    ("efsignsgd", FLAT),
    ("identity", DIVIDED),
]


def test_every_rank_gets_one_result_whose_mean_over_iterations_is_the_sum() -> None:
    shared = Shared(2, 2)
    gradients = [torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]

    def work(grid: Grid) -> list[list[Tensor]]:
        coders = KernelCoders(grid.rank, 4, seed=5)
        call, device = partial(shared.call, grid.rank), torch.device("cpu")
        found = []
        runs = []
        for number, (compressor, steps) in enumerate(CASES):
            group = decisions_of([("w", ELEMENTS)], [(0, 0, compressor, steps)], 2, 2).groups[0]
            runs.append(run_of(group, [f"w{number}"], ELEMENTS, grid, call, coders.coder, device))
        for _ in range(ITERATIONS):
            results = []
            for run in runs:
                run.flat.copy_(gradients[grid.rank])
                run.start(run.flat)
                for step in range(len(run.steps)):
                    run.step(step)
                assert run.values is not None
                results.append(run.values.clone())
            found.append(results)
            coders.iterations += 1
        return found

    ranks = shared.run(work)
    expected = torch.stack(gradients).sum(0)
    for number, case in enumerate(CASES):
        for iteration in range(ITERATIONS):
            assert all(torch.equal(each[iteration][number], ranks[0][iteration][number]) for each in ranks), case
        mean = torch.stack([results[number] for results in ranks[0]]).mean(0)
        assert (mean - expected).norm() < 0.25 * expected.norm(), case


def test_what_is_kept_between_steps_has_the_predicted_bytes() -> None:
    """By the storages of tensors, as the peak of a job counts them."""
    shared = Shared(2, 2)
    every = [decisions_of([("w", ELEMENTS)], [(0, 0, compressor, steps)], 2, 2) for compressor, steps in CASES[:-1]]

    def work(grid: Grid) -> list[int]:
        found = []
        for each in every:
            coders = KernelCoders(grid.rank, 4)
            call = partial(shared.call, grid.rank)
            run = run_of(each.groups[0], ["w"], ELEMENTS, grid, call, coders.coder, torch.device("cpu"))
            run.start(torch.zeros(ELEMENTS) if run.steps[0].startswith("compress@") else run.flat)
            for step in range(len(run.steps)):
                run.step(step)
            tensors = [*run.buffers.values(), *coders.kept()]
            sizes = {tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
            found.append(sum(sizes.values()))
        return found

    ranks = shared.run(work)
    for number, (each, case) in enumerate(zip(every, CASES, strict=False)):
        assert kept_bytes(each) == max(rank[number] for rank in ranks), case


@pytest.mark.parametrize(
    ("compressor", "steps", "text"),
    [
        ("topk", SUMMED, "found allreduce@inter of topk payloads, which cannot be summed"),
        ("powersgd:4", FLAT, "found allgather@flat of powersgd:4 payloads, expected an allreduce"),
    ],
)
def test_payloads_that_cannot_go_so_are_refused(compressor: str, steps: tuple[str, ...], text: str) -> None:
    group = decisions_of([("w", 9)], [(0, 0, compressor, steps)], 2, 2).groups[0]
    with pytest.raises(InputError, match=text):
        run_of(group, ["w"], 9, Grid(0, 2, 2), lambda *_: None, KernelCoders(0, 4).coder, torch.device("cpu"))


def test_a_coder_of_the_host_has_the_payload_of_the_device() -> None:
    values, payloads, outs = torch.randn(100), [], []
    for wrapped in (False, True):
        coder = KernelCoders(0, 1).coder("topk:0.1", ["w"], "cpu")
        coder = OnHost(coder) if wrapped else coder
        payload, out = torch.zeros(coder.wire_bytes(100), dtype=torch.uint8), torch.ones(100)
        coder.encode("0.0", values, payload, shared=False)
        coder.decode_add("0.0", payload, out)
        payloads.append(payload)
        outs.append(out)
    assert torch.equal(*payloads)
    assert torch.equal(*outs)
