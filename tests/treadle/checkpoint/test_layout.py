"""States of a device as bytes and back."""

from __future__ import annotations

import pickle
from collections import OrderedDict

import pytest
import torch

from treadle.checkpoint.layout import PREFIX, Packer, unpack
from treadle.planner.errors import CheckFailed, InputError


def packed(tree: object, version: int = 7) -> torch.Tensor:
    state = Packer().pack(version, tree)
    data = torch.cat(state.parts)
    assert len(data) == state.bytes
    return data


def test_plain_values_and_tensors_of_all_widths_come_back_bit_by_bit() -> None:
    tensors = {
        str(dtype): torch.randn(3, 5).to(dtype) if dtype.is_floating_point else torch.arange(5).to(dtype)
        for dtype in (torch.uint8, torch.float64, torch.bfloat16, torch.bool, torch.int64, torch.float32)
    }
    plain = {"lr": 0.1, "betas": (0.9, 0.999), "none": None, "big": 2**100, "list": [1, "two", b"3"], "set": {1}}
    tree = OrderedDict(a=tensors, b=plain, scalar=torch.tensor(3.5), empty=torch.empty(0, 4))
    version, found = unpack(packed(tree))
    assert version == 7
    assert found["b"] == plain
    assert found["empty"].shape == (0, 4)
    for name, tensor in tensors.items():
        assert torch.equal(found["a"][name], tensor)
        assert found["a"][name].dtype == tensor.dtype
    assert found["scalar"] == 3.5


def test_memory_is_sent_as_it_lies_and_shared_memory_once() -> None:
    weight = torch.randn(4, 6)
    turned = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    state = Packer().pack(0, {"a": weight, "tied": weight, "turned": turned, "gaps": torch.randn(6, 6)[:, ::2]})
    assert {weight.data_ptr(), turned.data_ptr()} <= {part.data_ptr() for part in state.parts}
    assert len(state.parts) == 4
    _, found = unpack(torch.cat(state.parts))
    assert torch.equal(found["tied"], weight)
    assert found["turned"].stride() == turned.stride()
    assert torch.equal(found["turned"], turned)
    assert found["gaps"].shape == (6, 3)


def test_the_next_version_has_the_values_that_are_there_then() -> None:
    packer, weight = Packer(), torch.zeros(3)
    packer.pack(0, [weight])
    weight.fill_(2)
    moved = torch.ones(3)
    weight.data = moved
    _, found = unpack(torch.cat(packer.pack(1, [weight]).parts))
    assert found[0].tolist() == [1, 1, 1]


def test_values_of_other_types_are_refused() -> None:
    with pytest.raises(InputError, match="found a value of type Packer in a state"):
        Packer().pack(0, {"a": Packer()})
    with pytest.raises(InputError, match="type dtype"):
        Packer().pack(0, [torch.float32])


def test_bytes_from_elsewhere_run_no_code() -> None:
    body = pickle.dumps(([], pickle.dumps(print)))
    evil = PREFIX.pack(b"treadle1", 0, PREFIX.size + len(body), PREFIX.size + len(body)) + body
    with pytest.raises(CheckFailed, match=r"no state of a device: they name builtins\.print"):
        unpack(torch.frombuffer(bytearray(evil), dtype=torch.uint8))


@pytest.mark.parametrize("place", [0, 9, 17, 25])
def test_a_damaged_header_is_no_state(place: int) -> None:
    data = packed({"a": torch.ones(4)})
    if place == 9:  # the version is whatever it says
        data = data[:-1]
    else:
        data[place] ^= 0xFF
    with pytest.raises(CheckFailed, match="no state of a device"):
        unpack(data)
