"""covariance on Dask, cut over 4 workers.

6 operators; the plan moves 14.62 KiB between workers.
"""

from treadle.runtime.tiling.dask_arrays import mapped, moved, new, viewed
from treadle.runtime.tiling.dask_folds import folded, joined

NAME = "covariance"
MESH = [4]
NODES = [
    {
        "id": "x.newarray",
        "operator": "newarray",
        "function": "uniform",
        "axes": [],
        "params": {"init": "uniform", "seed": 1},
        "update": "each",
        "array": "x",
        "shape": [1000, 24],
        "dtype": "float64",
        "mesh": [4],
    },
    {
        "id": "sums.fold",
        "operator": "fold",
        "function": "sum",
        "axes": [0],
        "params": {},
        "update": "each",
        "array": "sums",
        "shape": [24],
        "dtype": "float64",
        "mesh": [4],
    },
    {
        "id": "means.map",
        "operator": "map",
        "function": "divide",
        "axes": [],
        "params": {"constants": [[1, "int", "1000"]]},
        "update": "each",
        "array": "means",
        "shape": [24],
        "dtype": "float64",
        "mesh": [4],
    },
    {
        "id": "centred.map",
        "operator": "map",
        "function": "subtract",
        "axes": [],
        "params": {},
        "update": "each",
        "array": "centred",
        "shape": [1000, 24],
        "dtype": "float64",
        "mesh": [4],
    },
    {
        "id": "turned.swapaxis",
        "operator": "swapaxis",
        "function": "swapaxis",
        "axes": [0, 1],
        "params": {},
        "update": "each",
        "array": "turned",
        "shape": [24, 1000],
        "dtype": "float64",
        "mesh": [4],
    },
    {
        "id": "product.join_update",
        "operator": "join_update",
        "function": "matmul",
        "axes": [1, 0],
        "params": {},
        "update": "all",
        "array": "product",
        "shape": [24, 24],
        "dtype": "float64",
        "mesh": [4],
    },
]


def program(values):
    "The results by name, as tiled arrays of Dask; `values` has the arrays that the plan lacks."
    t0 = new(NODES[0], values, ["S0"])
    t1 = folded(NODES[1], [t0], ["S0"], ["S0"])
    t2 = mapped(NODES[2], [t1], ["S0"])
    t3 = mapped(NODES[3], [t0, t2], ["S0"])
    t4 = viewed(NODES[4], [t3])
    t5 = joined(NODES[5], [t4, t3], [["S1"], ["S0"]], ["P"], ["S0"])
    return {"product": t5}
