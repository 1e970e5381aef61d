"""What generated products take: cycles by hand, peaks that they do not reach, rates that were measured."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.machine.machines import profile, shipped
from treadle.planner.machine.products import Product, multiprocessor, tile_us
from treadle.planner.machine.rates import machine_of

PRODUCT = Product("MatMul", "f16", 8192, 4096, 8192)


def test_a_tile_on_tensor_cores_by_hand() -> None:
    """A100: 16 KiB of panels take 300 cycles to arrive, 256 from L2, 128 to shared memory, and two barriers; 16 squares
    of two steps each need 16 cycles of tensor cores, or of shared memory."""
    a100 = multiprocessor({"float32": 19.5e12, "float16": 312e12, "bfloat16": 312e12}, 108)
    assert a100 is not None
    assert (round(a100.clock), a100.lanes["f32"], round(a100.tensor)) == (1411, 64, 1024)
    panels, write = 4096 // 32 * (300 + 256 + 128 + 60 + 16 * 2 * 16), 300 + 128 * 128 * 2 / 64
    assert tile_us("f16", (128, 128), 4096, a100) == pytest.approx((panels + write) / a100.clock, rel=1e-3)


def test_a_tile_without_tensor_cores_by_hand() -> None:
    """H100 in f32: a thread makes 8 x 4 elements, for which it reads 12 wavefronts; its 128 lanes need but 8 cycles."""
    h100 = multiprocessor({"float32": 67e12}, 132)
    assert h100 is not None
    assert h100.lanes["f32"] == 128
    panels, write = 4096 // 16 * (300 + 256 + 128 + 60 + 16 * 16 * 12), 300 + 128 * 128 * 4 / 64
    assert tile_us("f32", (128, 128), 4096, h100) == pytest.approx((panels + write) / h100.clock)


@pytest.mark.parametrize(("name", "least", "most"), [("dgx2", 0.05, 0.12), ("ndv4", 0.3, 0.45), ("ndv5", 0.15, 0.3)])
def test_generated_products_are_far_from_the_peak(name: str, least: float, most: float) -> None:
    """On V100 they use no tensor cores at all; on the others loads take turns with multiplications."""
    machine, peak = shipped(name), profile(name).devices[0].peak_flops["float16"] / 1e6
    reached = PRODUCT.flops / machine.product_us(PRODUCT, machine.multiprocessors, "own")
    assert least < reached / peak < most
    assert reached <= machine.without_library.rate("f16")
    assert machine.rate("f16") == machine.with_library.rate("f16") == pytest.approx(0.8 * peak)


def test_a_measured_rate_is_taken() -> None:
    hardware = profile("ndv4")
    device = replace(hardware.devices[0], gemm_flops={"float16": 60e12})
    machine = machine_of(replace(hardware, devices=(device,)))
    assert machine.without_library.rate("f16") == 60e6
    assert machine.product_us(PRODUCT, 108, "own") == pytest.approx(
        shipped("ndv4").product_us(PRODUCT, 108, "own") * 127.1 / 60, rel=1e-2
    )
