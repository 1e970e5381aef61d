"""PyTorch text of an array program's tiling plan: `program.py`, what one worker computes on its tiles.

Each transfer is one or more calls on `mesh`; nothing else communicates. What a mesh of equal tiles cannot do is refused
by name: cuts that do not come out even, filters, parts of a cut axis, running totals along a cut axis, and partial
results that no collective merges. The interpreter runs those (`treadle run` for target tiling-config).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from treadle.codegen.python_text import PythonTree, constants, layout, nested, python_names
from treadle.codegen.templates import quote, template
from treadle.codegen.tiling.array_mesh import engine_mesh, folded, on_mesh, projected
from treadle.codegen.tiling.moves import local_shape, moved
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import NodeTiling, TiledEdge, TilingDecisions
from treadle.planner.passes.tiling.lifetimes import given_up
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling, MeshAxis, TiledArray
from treadle.planner.passes.tiling.redistribution import TilingPrices

FILE_NAME = "program.py"
ELSEWHERE = "target tiling-config runs it"
MERGED = {
    **dict.fromkeys(("sum", "count_nonzero", "matmul", "add", "tensordot", "vdot"), "sum"),
    **dict.fromkeys(("prod", "multiply"), "product"),
    **dict.fromkeys(("max", "any", "maximum", "logical_or"), "max"),
    **dict.fromkeys(("min", "all", "minimum", "logical_and"), "min"),
}
"""The operation of a collective that merges partial results, by the function that made them or that merges them."""
SAME = "add subtract multiply divide exp expm1 log log1p sqrt negative square maximum minimum sin cos tanh matmul"
TORCH = {**{name: f"torch.{name}" for name in SAME.split()}, "absolute": "torch.abs"}
FOLDS = {"sum": "torch.sum", "max": "torch.amax", "min": "torch.amin"}
"""Functions that are the same in PyTorch where operands and result have one floating type; others run as NumPy's."""
FLOATING = ("float32", "float64")
COLLECTIVES = {
    "allgather": "all_gather_into_tensor",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all_single",
    "reduce_scatter": "reduce_scatter_tensor",
}
"""The names of PyTorch of what `mesh` calls."""
Lines = Generator[str, None, ArrayTiling]
"""Lines, and the tiling in which they leave the result."""


def program_text(decisions: TilingDecisions) -> str:
    """The module of `decisions`. Raises InputError for what a mesh of processes cannot do."""
    writer = _Writer(decisions)
    lines = list(writer.lines())
    problem = decisions.problem
    outputs = {name: writer.copies[name][0][1] for name in problem.outputs}
    return template("tiling/program.py.j2").render(
        name=problem.name,
        mesh=" x ".join(f"{axis.size} {axis.name}" for axis in writer.mesh),
        calls=many(len(problem.nodes), "call"),
        torch=any("torch." in line for line in lines),
        constants=[
            *constants(
                MESH=[[axis.name, axis.size] for axis in writer.mesh],
                COLLECTIVES=dict(sorted(writer.counted.items())),
                OUTPUTS=outputs,
            ),
            *layout("NODES = ", nested({node.id: writer.record(node) for node in problem.nodes}), 0),
        ],
        lines=lines,
    )


@dataclass
class _Writer:
    decisions: TilingDecisions
    counted: Counter[str] = field(default_factory=Counter)
    copies: dict[str, list[tuple[str, ArrayTiling]]] = field(default_factory=dict)
    """By array the names of its tiles, each with its tiling on the mesh."""

    @cached_property
    def mesh(self) -> tuple[MeshAxis, ...]:
        return engine_mesh(self.decisions)

    @cached_property
    def prices(self) -> TilingPrices:
        return TilingPrices(self.mesh, "exact")

    @cached_property
    def arrays(self) -> dict[str, TiledArray]:
        return {array.id: array for array in self.decisions.problem.arrays}

    @cached_property
    def planned(self) -> dict[str, ArrayTiling]:
        return dict(zip(self.arrays, self.decisions.tilings, strict=True))

    @cached_property
    def nodes(self) -> dict[str, NodeTiling]:
        return {node.node: node for node in self.decisions.nodes}

    @cached_property
    def names(self) -> dict[str, str]:
        taken = {"mesh", "torch", "values", *(f"read_{place}" for place in range(100))}
        return python_names(self.arrays, taken, ("", "_second"))

    def on_mesh(self, tiling: ArrayTiling, rank: int) -> list[ArrayTiling]:
        return on_mesh(tiling, rank, len(self.mesh), published=self.decisions.problem.published)

    def record(self, node: ArrayNode) -> dict[str, Any]:
        """What calls by name need of a node."""
        dtype = self.arrays[node.outputs[0]].dtype
        return {
            "operator": node.operator,
            "function": node.function,
            "axes": node.axes,
            "params": node.params,
            "dtype": dtype,
        }

    def lines(self) -> Iterator[str]:
        problem = self.decisions.problem
        for node, gone in zip(problem.nodes, given_up(problem), strict=True):
            yield from self._node(node)
            tiles = [tile for name in gone for tile, _ in self.copies[name]]
            if tiles:
                yield f"    del {', '.join(tiles)}"
        outputs = (f"{quote(name)}: {self.copies[name][0][0]}" for name in problem.outputs)
        yield from layout("return ", PythonTree("{", tuple(outputs), "}"), 4)

    def _node(self, node: ArrayNode) -> Iterator[str]:
        if len(node.outputs) != 1:
            raise InputError(f"node {node.id!r} makes {len(node.outputs)} arrays, expected one")
        out = node.outputs[0]
        name, shape = self.names[out], self.arrays[out].shape
        if node.operator in ("slice", "swapaxis"):
            yield from self._view(node)
            return
        first, *others = self.on_mesh(self.planned[out], len(shape))
        tile = self._tile(out, first)
        tiling = yield from self._made(node, name, first, tile)
        yield from self._move(out, name, name, tiling, first, node)
        yield f"    mesh.made({name}, {list(tile)})"
        self.copies[out] = [(name, first)]
        for other in others:
            self._tile(out, other)
            yield from self._move(out, name, f"{name}_second", first, other, node)
            self.copies[out].append((f"{name}_second", other))

    def _made(self, node: ArrayNode, name: str, wanted: ArrayTiling, tile: tuple[int, ...]) -> Lines:
        """The calls that make the result."""
        shape = self.arrays[node.outputs[0]].shape
        match node.operator:
            case "newarray" | "value":
                out, record = quote(node.outputs[0]), f"NODES[{quote(node.id)}]"
                yield f"    {name} = mesh.filled({record}, {out}, {list(shape)}, {_words(wanted)}, values)"
                return wanted
            case "filter":
                raise InputError(f"node {node.id!r} filters, and the tiles of a mesh are equal; {ELSEWHERE}")
            case "map":
                reads = [projected(wanted, self.arrays[each].shape, shape) for each in node.inputs]
                makes = wanted
            case "join_update":
                whole = all(axis == -1 for axis in node.axes)
                cut = "R" if whole else "S0" if node.update == "each" else "P"
                reads = [(f"S{axis}" if axis >= 0 else "R",) * len(self.mesh) for axis in node.axes]
                makes = (cut,) * len(self.mesh)
            case _:
                reads = [self._copy(node.inputs[0], self.nodes[node.id].reads[0])[1]]
                makes = folded(
                    reads[0], node.axes, keepdims=node.operator == "scan" or bool(node.params.get("keepdims"))
                )
        if not self.decisions.problem.published:
            reads, makes = list(self.nodes[node.id].reads), self.nodes[node.id].makes[0]
        if node.operator == "scan" and "P" in makes:
            raise InputError(f"node {node.id!r} runs along an axis that is cut; {ELSEWHERE}")
        tiles, used = [], []
        for place, (array, tiling) in enumerate(zip(node.inputs, reads, strict=True)):
            self._tile(array, tiling)
            found, there = self._copy(array, tiling)
            if there != tiling:
                yield from self._move(array, found, f"read_{place}", there, tiling, node)
                found = f"read_{place}"
                used.append(found)
            tiles.append(found)
        yield from layout(f"{name} = ", self._call(node, tiles), 4)
        if used:
            yield f"    del {', '.join(used)}"
        return makes

    def _call(self, node: ArrayNode, tiles: list[str]) -> PythonTree:
        types = {self.arrays[array].dtype for array in (*node.inputs, *node.outputs)}
        plain = len(types) == 1 and types <= {*FLOATING}
        if plain and node.function in TORCH and not node.params and node.operator in ("map", "join_update"):
            return PythonTree(f"{TORCH[node.function]}(", tuple(tiles))
        if plain and node.function in FOLDS and node.operator == "fold" and not node.params.keys() - {"keepdims"}:
            keep = bool(node.params.get("keepdims"))
            return PythonTree(f"{FOLDS[node.function]}(", (*tiles, f"dim={list(node.axes)}", f"keepdim={keep}"))
        return PythonTree("mesh.called(", (f"NODES[{quote(node.id)}]", *tiles))

    def _view(self, node: ArrayNode) -> Iterator[str]:
        out, source = node.outputs[0], node.inputs[0]
        self.copies[out] = []
        for place, (tile, tiling) in enumerate(self.copies[source]):
            name = self.names[out] + ("_second" if place else "")
            if node.operator == "swapaxis":
                one, other = node.axes
                swapped = {f"S{one}": f"S{other}", f"S{other}": f"S{one}"}
                yield f"    {name} = torch.swapaxes({tile}, {one}, {other})"
                self.copies[out].append((name, tuple(swapped.get(word, word) for word in tiling)))
                continue
            yield f"    {name} = {tile}"
            for axis, (start, stop, step) in enumerate(node.params["region"]):
                if (start, stop, step) == (0, self.arrays[source].shape[axis], 1):
                    continue
                if f"S{axis}" in tiling:
                    raise InputError(f"node {node.id!r} takes a part of axis {axis}, which is cut; {ELSEWHERE}")
                yield f"    {name} = torch.ops.aten.slice.Tensor({name}, {axis}, {start}, {stop}, {step})"
            self.copies[out].append((name, tiling))

    def _copy(self, array: str, tiling: ArrayTiling) -> tuple[str, ArrayTiling]:
        """The tile of `array` in `tiling`, a word of the plan or of the mesh, or else its first one."""
        wanted = self.on_mesh(tiling, len(self.arrays[array].shape)) if len(tiling) < len(self.mesh) else [tiling]
        copies = self.copies[array]
        return next((copy for copy in copies if copy[1] == wanted[0]), copies[0])

    def _move(
        self, array: str, source: str, name: str, before: ArrayTiling, after: ArrayTiling, node: ArrayNode
    ) -> Iterator[str]:
        if before == after:
            return
        path = self.prices.path(self.arrays[array], before, after)
        edge = TiledEdge(array=array, node=node.id, steps=tuple(each.step for each in path), bytes=0, cost=0)
        merged = MERGED.get(str(node.params.get("combine", node.function)))
        if "P" in before and merged is None:
            raise InputError(f"node {node.id!r} leaves partial results that no collective merges; {ELSEWHERE}")
        for step in moved(source, edge, before, after, self.mesh):
            call = step.replace("(_,", f"({name},")
            self.counted.update(COLLECTIVES[word] for word in COLLECTIVES if f"mesh.{word}(" in call)
            if merged not in (None, "sum") and ("mesh.allreduce(" in call or "mesh.reduce_scatter(" in call):
                call = f"{call[:-1]}, {quote(str(merged))})"
            yield f"    {name} = {call}"

    def _tile(self, array: str, tiling: ArrayTiling) -> tuple[int, ...]:
        try:
            return local_shape(self.arrays[array].shape, tiling, self.mesh)
        except InputError as error:
            raise InputError(f"array {array!r}: {error}; {ELSEWHERE}") from error


def _words(tiling: Sequence[str]) -> str:
    return f"[{', '.join(map(quote, tiling))}]"
