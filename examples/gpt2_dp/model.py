"""The model of the demo: GPT-2, cut down until four processes on two cores train it in seconds."""

from __future__ import annotations

from examples.models.common import Step
from examples.models.gpt2 import Config, step

REDUCED = Config(layers=6, heads=4, width=128, vocabulary=512, context=128)


def reduced(*, batch: int = 8, tokens: int = 128) -> Step:
    """The same code as GPT-2 small to XL with 6 layers, 128 wide, over 512 tokens."""
    return step(REDUCED, batch, tokens)
