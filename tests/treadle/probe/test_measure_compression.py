"""Costs of compressors: what is measured becomes curves, and payloads have the bytes that plans count with."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
import torch
from torch import Tensor

from treadle.cli.main import run
from treadle.host.cores import cores
from treadle.planner.documents import store
from treadle.planner.documents.compression_costs import CompressionCosts
from treadle.planner.documents.sources import SHIPPED, load_named
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.machine.compressors import compressor
from treadle.planner.resources import names
from treadle.probe import compression_worker, routine_worker
from treadle.probe import measure_compression as module
from treadle.probe.curve_fit import fit_curve
from treadle.probe.measure_compression import MeasuredCompression, measure_compression, ranks_of_host
from treadle.probe.measured_codecs import FactorsCodec
from treadle.probe.routine_worker import ROUTINES
from treadle.runtime.launch import launch
from treadle.runtime.scope_groups import ScopeGroups

SIZES = (64, 4096)


class HalfCodec:
    """fp16 in plain PyTorch. It may write `extra` bytes, and leave the last `left` of its payload as they are."""

    def __init__(self, elements: int, extra: int = 0, left: int = 0) -> None:
        self.elements, self.extra, self.left = elements, extra, left
        self.wire_bytes = compressor("fp16").wire_bytes(elements)

    def encode(self, values: Tensor, payload: Tensor, residual: Tensor | None, seed: int) -> None:
        sent = (values if residual is None else values + residual).half()
        if residual is not None:
            residual.add_(values).sub_(sent)
        whole = torch.as_strided(payload, (self.wire_bytes + self.extra,), (1,))
        whole[: 2 * self.elements - self.left].copy_(sent.view(torch.uint8)[: 2 * self.elements - self.left])
        whole[2 * self.elements :].zero_()

    def decode_add(self, payloads: Tensor, out: Tensor, seed: int) -> None:
        for piece in payloads.view(-1, self.wire_bytes):
            out.add_(piece[: 2 * self.elements].view(torch.float16))


@pytest.fixture(autouse=True)
def one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression_worker, "PASSES", 1)


def sound(name: str, elements: int, *, device: str) -> HalfCodec:
    return HalfCodec(elements)


def measured(*words: str, together: int | None = None) -> MeasuredCompression:
    found = measure_compression(words, SIZES, together, "measure", maker=sound)
    assert found is not None
    return found


def test_all_works_become_curves_of_a_document_that_loads(tmp_path: Path) -> None:
    steps: list[str] = []
    found = measure_compression(["fp16"], SIZES, None, "measure it", on_step=steps.append, maker=sound)
    assert found is not None
    costs = found.costs
    assert [(cost.name, cost.place) for cost in costs.compressors] == [("fp16", "device"), ("fp16", "host")]
    for cost in costs.compressors:
        assert cost.encode.at(16) > 0
        assert [curve.pieces for curve in cost.decode] == [1, 4, 16]
        assert cost.decode_ns(1024, 16) > cost.decode_ns(1024, 1)
    assert costs.pack is not None
    assert costs.pack.at(1024) > 0
    assert not costs.routines
    assert {"pack", "compressors"} == costs.sources.keys()
    assert "`measure it`, one process" in costs.sources["compressors"]
    assert {len(fit.rows) for fit in found.fits.values()} == {len(SIZES)}
    assert "fp16 on the device, 64 B" in steps[0]
    store.save(costs, tmp_path / "costs.yaml")
    assert store.load(tmp_path / "costs.yaml", CompressionCosts) == costs


@pytest.mark.parametrize(
    ("extra", "left", "message"),
    [
        (4, 0, "fp16 on the device: 16 elements have a payload of 36 bytes, expected 32"),
        (0, 2, "fp16 on the device: 16 elements have a payload of 30 bytes, expected 32"),
    ],
)
def test_a_payload_of_another_size_is_an_error(extra: int, left: int, message: str) -> None:
    with pytest.raises(CheckFailed) as found:
        measure_compression(["fp16"], (64,), None, "", maker=lambda *_, device: HalfCodec(16, extra, left))
    assert str(found.value) == message


def test_bytes_inside_a_payload_that_are_not_written_are_an_error() -> None:
    class Gap(HalfCodec):
        def encode(self, values: Tensor, payload: Tensor, residual: Tensor | None, seed: int) -> None:
            kept = payload[4:6].clone()
            super().encode(values, payload, residual, seed)
            payload[4:6] = kept

    with pytest.raises(CheckFailed, match="16 elements leave 2 bytes of 32 as they were"):
        measure_compression(["fp16"], (64,), None, "", maker=lambda *_, device: Gap(16))


def test_the_factors_of_powersgd_are_a_payload() -> None:
    values = torch.arange(1.0, 13.0)
    codec = FactorsCodec("powersgd:4", 12, "cpu")
    payload, out = torch.empty(codec.wire_bytes, dtype=torch.uint8), torch.ones(12)
    assert codec.wire_bytes == compressor("powersgd:4").wire_bytes(12)
    codec.encode(values, payload, None, 0)
    codec.decode_add(payload, out, 0)
    assert torch.allclose(out, values + 1, atol=1e-4)


def test_processes_measure_together_under_their_common_load() -> None:
    costs = measured("fp16", "fp16", together=2).costs
    assert "2 processes at once" in costs.sources["compressors"]
    assert [cost.place for cost in costs.compressors] == ["device", "host"]


def joined(rank: int, world: int, port: int) -> MeasuredCompression | None:
    """As torchrun starts it, on two hosts of a rank each."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    routine_worker.SIZES, routine_worker.PASSES = (64, 1 << 16), 1
    return measure_compression(["fp16"], SIZES, None, "measure", maker=sound)


@pytest.mark.slow
def test_ranks_that_were_started_together_measure_collectives_too() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first, second = launch(2, joined, (port,), timeout=120, joined=False)
    assert second is None
    routines = first.costs.routines
    assert [(cost.routine, cost.scope, cost.ranks) for cost in routines] == [(name, "flat", 2) for name in ROUTINES]
    issue = first.costs.issue
    assert issue is not None or cores() > 2
    assert all((issue.at(1 << 16) if issue else 0) + cost.curve.at(1 << 16) > 1000 for cost in routines)
    assert "allreduce of another thread" in first.costs.sources["issue"]
    assert "gloo" in first.costs.sources["routines"]
    assert "allgather, 2 ranks, flat" in first.fits


def test_collectives_within_hosts_and_between_them_are_measured_where_there_are_both() -> None:
    both, one = ScopeGroups(1, 2, 3), ScopeGroups(1, 2, None)
    assert {scope for scope, _ in routine_worker.collectives(both)} == {"flat", "intra", "inter"}
    assert {scope for scope, _ in routine_worker.collectives(one)} == {"flat"}


@pytest.mark.parametrize("text", ["3", "0", "x"])
def test_ranks_that_do_not_fill_hosts_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
    with pytest.raises(InputError, match=f"LOCAL_WORLD_SIZE: found '{text}', expected a number of ranks that divides"):
        ranks_of_host(4)


@pytest.mark.parametrize("name", names("profiles/compression"))
def test_what_ships_loads_and_covers_every_number_with_a_source(name: str) -> None:
    costs = load_named(CompressionCosts, name)
    for place, cost in enumerate(costs.compressors):
        compressor(cost.name)
        assert any(path.startswith(f"compressors[{place}]") or path == "compressors" for path in costs.sources)
    assert "pack" in costs.sources
    assert SHIPPED[CompressionCosts] == "profiles/compression"


def test_the_published_costs_of_a_v100_are_those_of_the_papers() -> None:
    """Cupcake, section 5.2: ten tensors of 128 KB take 0.4 ms each, and 0.4 ms in one."""
    dgc = load_named(CompressionCosts, "v100").compressors[0]
    assert (dgc.name, dgc.place) == ("dgc:0.01", "device")
    assert dgc.encode.at(32 << 10) == dgc.encode.at(10 * (32 << 10)) == 400_000
    assert dgc.encode.at(2 << 20) == 800_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--compression zip", "--compression: found 'zip', expected one of randomk, topk"),
        ("--compression fp16 --sizes 6", "--sizes: found 6 bytes, expected float32 gradients of 4 bytes to 1 GiB"),
        ("--compression fp16 --world 2", "--world: found --compression too, expected one of the two"),
        ("--compression fp16 --backend cpu", "--backend: found --compression too, expected one of the two"),
        ("--together 2", "--together: found no --compression, expected one with it"),
        ("--compression fp16 --together 0", "Invalid value for '--together': 0 is not in the range"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "measure", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_the_command_writes_prints_and_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = measured("fp16")
    noisy = fit_curve({256: 1000.0, 512: 9000.0, 1024: 10.0, 2048: 9000.0, 4096: 10.0})
    asked = []

    def measure(*arguments: object, **_: object) -> MeasuredCompression:
        asked.append(arguments)
        return MeasuredCompression(found.costs, found.fits if len(asked) < 3 else {"encode fp16": noisy})

    monkeypatch.setattr(module, "measure_compression", measure)
    words = ["profile", "measure", "--compression", "fp16", "--compression", "int8", "-o", "costs.yaml"]
    assert run([*words, "--sizes", "64,4K", "--together", "2"]) == 0
    command = "treadle profile measure --compression fp16 --compression int8 --sizes 64,4K --together 2"
    assert asked[0] == (["fp16", "int8"], (64, 4096), 2, command)
    printed = capsys.readouterr()
    assert "decode 4 payloads of fp16 on the device" in printed.out
    assert "residuals by size" in printed.out
    assert "wrote costs.yaml" in printed.err
    assert store.load("costs.yaml", CompressionCosts) == found.costs
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fits"]["encode fp16 on the device"]["sizes"][0].keys() >= {"measured_ns", "residual"}
    assert document["costs"]["kind"] == "compression-costs"
    assert run(words) == 0
    assert "encode fp16: the fit is off by" in capsys.readouterr().err
    assert run(["profile", "show", "costs.yaml"]) == 0
    assert "copy into one buffer" in capsys.readouterr().out
    Path("costs.yaml").write_text("# edited\n" + Path("costs.yaml").read_text())
    assert run(words) == 2
    assert "found a file that is no compression-costs of treadle" in capsys.readouterr().err
