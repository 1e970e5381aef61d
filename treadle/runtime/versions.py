"""Tensors of the caller that the backward pass reads again: a read after a change in place is an error by name.

PyTorch counts the changes of a tensor (`Tensor._version`) and compares when an op of its backward pass reads a saved
one. A generated step reads by name or number, so the comparison is in the look-up: hooks that run in the middle of the
backward pass, such as an optimizer's, may change whatever is read no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from treadle.planner.errors import InputError


class UnchangedNames(dict[str, Tensor]):
    """Tensors by name, of which those in `watched` are compared at each look-up."""

    def __init__(self, tensors: Mapping[str, Tensor], watched: Iterable[str], kind: str, where: str) -> None:
        super().__init__(tensors)
        self.kind, self.where = kind, where
        self.versions = {name: version(tensors[name]) for name in watched}

    def __getitem__(self, name: str) -> Tensor:
        tensor = super().__getitem__(name)
        if name in self.versions and version(tensor) != self.versions[name]:
            raise changed(f"{self.kind} {name!r}", self.where)
        return tensor


class UnchangedInputs(list[Tensor]):
    """The step's inputs, compared at each look-up."""

    def __init__(self, tensors: Sequence[Tensor], places: Sequence[str], where: str) -> None:
        super().__init__(tensors)
        self.places, self.where = places, where
        self.versions = [version(tensor) for tensor in tensors]

    def __getitem__(self, place: int) -> Tensor:  # type: ignore[override]
        tensor = super().__getitem__(place)
        if version(tensor) != self.versions[place]:
            raise changed(self.places[place], self.where)
        return tensor


def version(tensor: Tensor) -> int | None:
    """How often the tensor was changed in place; None for one of inference mode, which does not count."""
    return None if tensor.is_inference() else tensor._version


def changed(what: str, where: str) -> InputError:
    """What to raise where the backward pass reads a tensor that is not as the forward pass left it."""
    message = f"found {what} changed in place before the backward pass reads it, expected no change"
    return InputError(message, where=where)
