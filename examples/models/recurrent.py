"""RNN-L-XK and BRNN-L-XK: character models of L layers of LSTM cells, X thousand wide, unrolled cell by cell.

RNN reads in one direction, BRNN in both ("Bidirectional recurrent neural networks"); SwapAdvisor, section 5.1.

The cells of a layer share their parameters, so an order that finishes a layer before the next one needs each large
parameter once; the model's own order, in which all layers run at every step, needs all of them at every step.
SwapAdvisor states neither the number of steps nor the alphabet: 32 steps give about its number of operators, and
characters are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .common import Step

ALPHABET = 256


class Cell(nn.Module):
    """One step of an LSTM: x [N, inputs] and the state (h, c), each [N, width], to the next state."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.of_input = nn.Linear(inputs, 4 * width)
        self.of_state = nn.Linear(width, 4 * width, bias=False)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        gates = self.of_input(x) if state is None else self.of_input(x) + self.of_state(state[0])
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(i) * torch.tanh(g)
        if state is not None:
            c = torch.sigmoid(f) * state[1] + c
        return torch.sigmoid(o) * torch.tanh(c), c


class CharacterModel(nn.Module):
    """Characters [T, N] to the logits [T, N, alphabet] of each one's successor.

    With `both` a layer also has cells that read the sequence from its end, and hands on both outputs side by side.
    """

    def __init__(self, layers: int, width: int, both: bool, embedding: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ALPHABET, embedding)
        sides = 1 + both
        self.layers = nn.ModuleList(
            nn.ModuleList(Cell(sides * width if layer else embedding, width) for _ in range(sides))
            for layer in range(layers)
        )
        self.output = nn.Linear(sides * width, ALPHABET)

    def forward(self, characters: Tensor) -> Tensor:
        sequence = list(self.embedding(characters).unbind(0))
        if len(self.layers[0]) == 1:
            sequence = list(_steps([layer[0] for layer in self.layers], sequence))
        else:
            for forth, back in self.layers:
                pairs = zip(_steps([forth], sequence), _steps([back], sequence[::-1]), strict=True)
                ahead, behind = zip(*pairs, strict=True)
                sequence = [torch.cat(pair, 1) for pair in zip(ahead, reversed(behind), strict=True)]
        return torch.stack([self.output(x) for x in sequence])


def _steps(cells: list[nn.Module], sequence: list[Tensor]) -> Iterator[Tensor]:
    """Each step of `sequence` through all cells, as a text is read: the layers take turns."""
    states: list[tuple[Tensor, Tensor] | None] = [None] * len(cells)
    for x in sequence:
        for place, cell in enumerate(cells):
            x, _ = states[place] = cell(x, states[place])
        yield x


def character_loss(model: nn.Module, characters: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of every prediction; `targets` [T, N] are the characters to predict."""
    return F.cross_entropy(model(characters).flatten(0, 1), targets.flatten())


def step(layers: int, width: int, both: bool, embedding: int, batch: int, characters: int) -> Step:
    """One training step on random text; the first dimension is time."""
    text = torch.randint(ALPHABET, (characters + 1, batch))
    return CharacterModel(layers, width, both, embedding), (text[:-1].clone(), text[1:].clone()), character_loss


def rnn_8_8k(*, batch: int = 256, characters: int = 32) -> Step:
    """RNN-8-8K: 8 layers of 8192; 4,045,799,680 parameters."""
    return step(8, 8192, False, 512, batch, characters)


def brnn_4_8k(*, batch: int = 128, characters: int = 32) -> Step:
    """BRNN-4-8K: 4 layers of 8192 in each direction; 5,406,851,328 parameters."""
    return step(4, 8192, True, 512, batch, characters)


def tiny(*, batch: int = 4, characters: int = 6) -> Step:
    """3 layers of 16."""
    return step(3, 16, False, 8, batch, characters)


def tiny_both(*, batch: int = 4, characters: int = 6) -> Step:
    """2 layers of 16 in each direction."""
    return step(2, 16, True, 8, batch, characters)
