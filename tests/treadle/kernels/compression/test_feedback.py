"""What is kept from step to step: nothing is lost, a resumed run goes on bit by bit, divergence is said."""

from __future__ import annotations

import io
import logging

import pytest
import torch
from torch import Tensor

from treadle.kernels.compression import Feedback, PowerSGD, codec
from treadle.kernels.compression.divergence import EVERY
from treadle.kernels.compression.feedback import seed_of
from treadle.planner.errors import InputError

SIZE = 700


def gradients(count: int, size: int = SIZE) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=generator) for _ in range(count)]


def sent(feedback: Feedback, name: str, values: Tensor, step: int) -> Tensor:
    """What the payload of a step stands for."""
    made, key = codec(name, len(values)), (name, 0)
    payload, out = torch.empty(made.wire_bytes, dtype=torch.uint8), torch.zeros(len(values))
    feedback.encode(key, made, values, payload, step)
    made.decode_add(payload, out, seed_of(key, step))
    return out


@pytest.mark.parametrize("name", ["randomk:0.1", "topk:0.1", "dgc:0.1", "efsignsgd", "onebit", "qsgd", "int8"])
def test_what_was_sent_and_what_is_kept_are_all_gradients(name: str) -> None:
    feedback, given = Feedback(rank=1), gradients(12)
    total = sum(sent(feedback, name, each, step) for step, each in enumerate(given))
    (kept,) = feedback.state_dict()["kept"].values()
    assert torch.allclose(total + kept["residual"], sum(given), atol=1e-4)
    assert feedback.norms() == {(name, 0): pytest.approx(float(kept["residual"].norm()))}


def test_halves_and_the_identity_keep_nothing() -> None:
    feedback, (values,) = Feedback(), gradients(1)
    assert torch.equal(sent(feedback, "fp16", values, 0), values.half().float())
    assert torch.equal(sent(feedback, "bf16", values, 0), values.bfloat16().float())
    assert torch.equal(sent(feedback, "identity", values, 0), values)
    assert feedback.norms() == {}


def test_momentum_is_corrected_and_masked() -> None:
    """The recurrences of Deep Gradient Compression, written out."""
    feedback = Feedback(momentum=0.9, clip_norm=20.0, ranks=4)
    velocity, left = torch.zeros(SIZE), torch.zeros(SIZE)
    for step, each in enumerate(gradients(8)):
        velocity = 0.9 * velocity + each * min(1.0, 10.0 / float(each.norm()))
        left = left + velocity
        chosen = left.abs().topk(70).indices
        expected = torch.zeros(SIZE).index_copy(0, chosen, left[chosen])
        left[chosen], velocity[chosen] = 0, 0
        assert torch.allclose(sent(feedback, "dgc:0.1", each, step), expected, atol=1e-5)
    (kept,) = feedback.state_dict()["kept"].values()
    assert torch.allclose(kept["momentum"], velocity, atol=1e-5)


@pytest.mark.parametrize("name", ["dgc:0.1", "qsgd"])
def test_a_resumed_run_goes_on_bit_by_bit(name: str) -> None:
    given = gradients(6)
    whole, first, second = (Feedback(momentum=0.9) for _ in range(3))
    for step in range(3):
        assert torch.equal(sent(whole, name, given[step], step), sent(first, name, given[step], step))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    for step in range(3, 6):
        assert torch.equal(sent(whole, name, given[step], step), sent(second, name, given[step], step))
    with pytest.raises(InputError, match="found a state of version None, expected 1"):
        second.load_state_dict({})


def test_another_size_under_a_key_starts_anew(caplog: pytest.LogCaptureFixture) -> None:
    feedback = Feedback()
    sent(feedback, "topk:0.1", torch.ones(50), 0)
    with caplog.at_level(logging.WARNING, "treadle.compression"):
        sent(feedback, "topk:0.1", torch.ones(60), 1)
    assert "what was kept of 50 elements is dropped, there are 60 now" in caplog.text


def test_what_is_not_finite_leaves_no_trace() -> None:
    for feedback in (Feedback(momentum=0.9, clip_norm=1.0), Feedback(momentum=0.5), Feedback()):
        for name in ("dgc:0.1", "efsignsgd"):
            values, bad = gradients(2)
            bad[3] = float("nan")
            assert not sent(feedback, name, bad, 0).isfinite().all()
            assert sent(feedback, name, values, 1).isfinite().all()


def test_a_residual_that_diverges_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Velocities that double each step are more than a tenth of the elements can carry off."""
    with caplog.at_level(logging.WARNING, "treadle.compression"):
        growing, steady = Feedback(momentum=2.0), Feedback()
        for step in range(12 * EVERY):
            sent(growing, "dgc:0.1", torch.ones(40), step)
            sent(steady, "efsignsgd", torch.linspace(-1, 1, 40), step)
    assert caplog.text.count("dgc:0.1: the residual of dgc:0.1 diverges: its norm is") == 1
    assert "lower the learning rate" in caplog.text
    assert "efsignsgd" not in caplog.text


def test_seeds_differ_by_key_step_and_rank() -> None:
    seeds = {seed_of(key, step, rank) for key in ("a", "b") for step in range(3) for rank in range(2)}
    assert len(seeds) == 12
    assert seed_of(("layer.weight", 1), 5) == 5 << 32 ^ 0xC2ACF06F


@pytest.mark.parametrize("elements", [1, 2, 35, 36, 700])
def test_factors_of_two_ranks_and_what_each_keeps(elements: int) -> None:
    """The sum of what was decoded and of all residuals is the sum of all gradients."""
    ranks = [PowerSGD("powersgd:2", elements, seed=3) for _ in range(2)]
    given, total = [gradients(2, elements) for _ in ranks], torch.zeros(elements)
    given[1] = [each * 3 for each in given[1]]
    for step in range(2):
        left = sum(rank.first(values[step]) for rank, values in zip(ranks, given, strict=True))
        right = sum(rank.second(left) for rank in ranks)
        assert 4 * (left.numel() + right.numel()) == ranks[0].wire_bytes
        ranks[0].decode_add(right, total)
        ranks[1].decode_add(right, torch.zeros(elements))
    expected = sum(each for values in given for each in values)
    assert torch.allclose(total + ranks[0].residual + ranks[1].residual, expected, atol=1e-4)
    assert torch.equal(ranks[0].factor, ranks[1].factor)


def test_a_matrix_of_low_rank_is_sent_whole() -> None:
    values = torch.outer(torch.arange(20.0), torch.arange(20.0) - 7).view(-1)
    power, out = PowerSGD("powersgd:1", 400), torch.zeros(400)
    power.decode_add(power.second(power.first(values)), out)
    assert torch.allclose(out, values, rtol=1e-4, atol=1e-3)


def test_powersgd_forgets_what_is_not_finite_and_resumes() -> None:
    given, key = gradients(4, 50), ("weight", 0)

    def step(feedback: Feedback, power: PowerSGD, values: Tensor) -> Tensor:
        out = torch.zeros(50)
        power.decode_add(power.second(feedback.first(key, power, values)), out)
        return out

    whole, power = Feedback(), PowerSGD("powersgd:2", 50)
    step(whole, power, given[0] * float("nan"))
    assert power.residual.isfinite().all()
    assert power.factor.isfinite().all()
    step(whole, power, given[1])
    other, resumed = Feedback(), PowerSGD("powersgd:2", 50)
    other.load_state_dict(whole.state_dict())
    for each in given[2:]:
        assert torch.equal(step(whole, power, each), step(other, resumed, each))
    for name, size in (("topk:0.1", 50), ("powersgd:2", 51)):
        with pytest.raises(InputError):
            PowerSGD(name, size).first(given[0])
