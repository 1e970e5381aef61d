"""Configurations of an index as buckets of their parameters, which a model has embeddings for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from treadle.planner.documents.index_model import ParameterBuckets
from treadle.planner.passes.index.configurations import IndexConfiguration, grid


def vocabulary() -> tuple[ParameterBuckets, ...]:
    """The buckets of every parameter: the values that it takes in the grid."""
    values: dict[str, set[float]] = {}
    for each in grid():
        for name, value in parameters_of(each).items():
            values.setdefault(name, set()).add(value)
    return tuple(ParameterBuckets(name=name, values=tuple(sorted(found))) for name, found in values.items())


def parameters_of(of: IndexConfiguration) -> dict[str, float]:
    """Names and values of the parameters of a configuration; which kind of leaves it has is one, called by its tag."""
    fields = msgspec.to_builtins(of)
    return {fields.pop("leaves"): 1.0, **{name: float(value) for name, value in fields.items()}}


def buckets_of(parameters: Sequence[ParameterBuckets], of: IndexConfiguration) -> tuple[int, ...]:
    """The bucket of each parameter: of the nearest value by ratio, 0 where the configuration lacks the parameter."""
    own = parameters_of(of)
    return tuple(nearest_bucket(each, own.get(each.name)) for each in parameters)


def nearest_bucket(parameter: ParameterBuckets, value: float | None) -> int:
    """1 for the first value; 0 without a value."""
    if value is None:
        return 0
    return 1 + min(
        range(len(parameter.values)), key=lambda place: abs(math.log(parameter.values[place]) - math.log(value))
    )
