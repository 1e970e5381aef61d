"""Several gradients exchanged at once have the sums that each has on its own, in as many messages as one of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.treadle.runtime.sparse.gradients import dense_sum, random_gradients
from tests.treadle.runtime.sparse.plans import decisions_of
from treadle.planner.passes.sparse.schemes import SCHEMES
from treadle.runtime.sparse.exchange import gradients_of
from treadle.runtime.sparse.gradient import GradientExchange
from treadle.runtime.sparse.mail import Exchange, in_lockstep, together
from treadle.runtime.sparse.tally import ExchangeTally


def steps(exchanges: Mapping[str, GradientExchange], gradients: Mapping[str, Tensor]) -> Exchange[dict[str, Tensor]]:
    return together({name: exchanges[name].steps(each, ExchangeTally(name, "any")) for name, each in gradients.items()})


@pytest.mark.parametrize(("machines", "devices"), [(2, 1), (5, 1), (3, 2), (1, 2)])
def test_all_schemes_at_once(machines: int, devices: int) -> None:
    ranks, generator = machines * devices, np.random.default_rng(4)
    tables = [
        (scheme.name, scheme.name, form, 20 + place, 1 + place % 3)
        for place, (scheme, form) in enumerate((scheme, form) for scheme in SCHEMES for form in ("coo", "dense"))
        if (place + machines) % 2
    ]
    decisions = decisions_of(*tables, machines=machines, devices=devices)
    given = {name: random_gradients(generator, ranks, form, units, width) for name, _, form, units, width in tables}
    exchanges = [gradients_of(decisions, rank) for rank in range(ranks)]
    found = in_lockstep(
        [steps(exchanges[rank], {name: each[rank] for name, each in given.items()}) for rank in range(ranks)]
    )
    for sums in found:
        for name, gradients in given.items():
            assert torch.equal(sums[name].to_dense(), dense_sum(gradients)), name


def test_messages_to_one_rank_are_one() -> None:
    tables = [(name, "zen", "coo", 30, 2) for name in ("one", "other")]
    exchanges = gradients_of(decisions_of(*tables, machines=2), 0)
    gradient = torch.eye(30)[:, :2].to_sparse(1)

    def mail_of(*names: str) -> tuple[int, int]:
        first = next(steps(exchanges, dict.fromkeys(names, gradient)))
        return len(first.sent), sum(map(len, first.sent.values()))

    assert mail_of("one") == (1, 1)
    assert mail_of("one", "other") == (1, 2)
