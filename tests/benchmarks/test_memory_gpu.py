"""The GPU benchmark of memory plans: its code runs on a CPU, and without a GPU its table is empty."""

from __future__ import annotations

import pytest
import torch

from benchmarks.memory import gpu
from examples.models import unet

pytestmark = pytest.mark.slow


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    (table,) = gpu.tables()
    assert table.rows == []
    assert table.notes == ("no GPU",)


def test_peers_and_plans_are_measured_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "BUDGETS", (0.5,))
    monkeypatch.setattr(gpu, "REPEATS", 1)
    table = gpu.compared("U-Net, tiny", unet.tiny, "cpu")
    assert table.rows[0]["step"] == "eager"
    planned = [row for row in table.rows if "our peak / peer" in row]
    assert planned
    assert all(row["our peak / peer"] <= 1 for row in planned)
