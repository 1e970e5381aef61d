"""Shardings of JAX for column sums: along which axes each array is cut over 4 workers.

    mesh = on(jax.devices())
    x = jax.device_put(x, sharding("x", mesh))
    y = jax.lax.with_sharding_constraint(y, sharding("y", mesh))  # in a function under jax.jit

Arrays in `LEFT` are left to JAX, each for its reason.
Arrays in `SECOND` have a second copy, which `sharding(name, mesh, SECOND)` places.
It needs JAX only.
"""

import numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = ["workers_rows", "workers_columns"]
SIZES = [2, 2]
SPECS = {
    "rows": [["workers_rows", "workers_columns"], []],
    "columns": [[], ["workers_rows", "workers_columns"]],
    "blocks": [["workers_rows"], ["workers_columns"]],
    "twice": [[], ["workers_rows", "workers_columns"]],
    "number": [],
}
SECOND = {"twice": [["workers_rows", "workers_columns"], []]}
LEFT = {"uneven": "an axis of 6 does not divide into 4 equal parts"}


def on(devices):
    """The mesh of the plan on the first devices of a list."""
    size = numpy.prod(SIZES, dtype=int)
    if len(devices) < size:
        raise ValueError(f"found {len(devices)} devices, expected the {size} of the plan")
    return Mesh(numpy.array(devices[:size]).reshape(SIZES), AXES)


def sharding(name, mesh, specs=SPECS):
    """The sharding of an array: for each of its axes the axes of the mesh that cut it, the first of them first."""
    if name in LEFT:
        raise ValueError(f"{name} is left to JAX: {LEFT[name]}")
    return NamedSharding(mesh, PartitionSpec(*map(tuple, specs[name])))
