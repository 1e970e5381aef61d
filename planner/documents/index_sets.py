"""Recorded index sets: which units of each sparse gradient were not zero, on every rank at every step."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record
from treadle.planner.documents.sparsity import Form, Unit, problems_of_units

VERSION = 1


class TensorIndexSets(Record, frozen=True, kw_only=True):
    """Index sets of one gradient of `units` units of `width` elements each. `sets[step][rank]` are units from 0, in any
    order; those of a COO gradient repeat where its entries do."""

    name: Name
    form: Form
    unit: Unit
    units: Positive
    width: Positive
    sets: tuple[tuple[tuple[Count, ...], ...], ...]

    def problems_at(self, path: str) -> Iterator[tuple[str, str, str]]:
        """(path, found, expected) for sets that no gradient has."""
        yield from problems_of_units(self.unit, self.units, self.width, path)
        for step, ranks in enumerate(self.sets):
            for rank, indices in enumerate(ranks):
                at = f"{path}.sets[{step}][{rank}]"
                if indices and max(indices) >= self.units:
                    yield f"{at}[{indices.index(max(indices))}]", str(max(indices)), f"a unit below {self.units}"
                if self.form == "dense" and len(set(indices)) < len(indices):
                    yield at, "a unit twice", "units of a dense gradient once each"


class IndexSets(Document, frozen=True, kw_only=True, tag_field="kind", tag="index-sets"):
    """Index sets of the sparse gradients of one model; all have as many steps and ranks."""

    version: Positive
    name: Name
    tensors: tuple[TensorIndexSets, ...]
    sources: dict[str, str] = {}
    """Where the sets come from, by path prefix without `$.`."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if not self.tensors:
            yield "$.tensors", "none", "at least one sparse gradient"
            return
        seen: set[str] = set()
        first = self.tensors[0].sets
        if not first or not first[0]:
            yield "$.tensors[0].sets", "none", "a list of steps, each with an index set for every rank"
            return
        for place, tensor in enumerate(self.tensors):
            path = f"$.tensors[{place}]"
            if tensor.name in seen:
                yield f"{path}.name", f"second {tensor.name!r}", "names that occur once"
            seen.add(tensor.name)
            if len(tensor.sets) != len(first):
                yield f"{path}.sets", f"{len(tensor.sets)} steps", f"{len(first)}, as of the first tensor"
            for step, ranks in enumerate(tensor.sets):
                if len(ranks) != len(first[0]):
                    expected = f"{len(first[0])}, one for each rank as in the first step"
                    yield f"{path}.sets[{step}]", f"{len(ranks)} sets", expected
            yield from tensor.problems_at(path)
