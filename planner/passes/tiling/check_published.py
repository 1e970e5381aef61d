"""Whether a plan of a published problem may run, counted again: tilings, how operators read, moves, totals."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from treadle.planner.passes.tiling.check_elements import CountedElements, Elements
from treadle.planner.passes.tiling.check_places import TWICE, VIEWS, copies, counted, root_held
from treadle.planner.passes.tiling.decisions import NodeTiling, TiledEdge, TilingDecisions, Transfer, TransferStep
from treadle.planner.passes.tiling.problem import ArrayNode, TilingProblem

Finding = tuple[str, object, str]


def words_of(problem: TilingProblem) -> dict[str, tuple[str, ...]]:
    """The tilings that each array may have. A view has none that its source has no word for."""
    arrays, named = {array.id: array for array in problem.arrays}, dict[str, set[str]]()
    found: dict[str, tuple[str, ...]] = {}
    for node in problem.nodes:
        name = node.outputs[0]
        array, rank = arrays[name], len(arrays[name].shape)
        words = [*(f"S{axis}" for axis in range(max(1, rank))), *(("B", *TWICE) if rank > 1 else ())]
        if node.operator in VIEWS:
            words = [word for word in words if source_word(node, word, rank) in named[node.inputs[0]]]
        named[name] = {*words}
        fits = 0 < prod(array.shape) * array.item_bytes <= problem.dup_bytes
        if array.fixed is not None:
            words = [word for word in words if word == array.fixed[0]]
        elif node.operator == "value":
            words = words[:1]
        elif not fits:
            words = [word for word in words if word not in TWICE]
        found[name] = tuple(words)
    return found


def source_word(node: ArrayNode, word: str, rank: int) -> str | None:
    """The tiling that the source of a view must have; None where it has no word."""
    if node.operator != "swapaxis" or rank < 2:
        return word
    order = list(range(rank))
    one, other = node.axes
    order[one], order[other] = order[other], order[one]
    if word.startswith("S"):
        return f"S{order[int(word[1:])]}"
    if {*order[:2]} != {0, 1}:
        return None
    return f"D{order[int(word[1:])]}" if word.startswith("D") else word


def tiling_findings(decisions: TilingDecisions) -> Iterator[Finding]:
    """Tilings that an array may not have, or that another one than its source has."""
    problem = decisions.problem
    makers = {name: node for node in problem.nodes for name in node.outputs}
    tiling = {array.id: chosen for array, chosen in zip(problem.arrays, decisions.tilings, strict=True)}
    all_words = words_of(problem)
    for place, array in enumerate(problem.arrays):
        path, node, chosen = f"$.decisions.tilings[{place}]", makers[array.id], tiling[array.id]
        words = all_words[array.id]
        if len(chosen) != 1 or chosen[0] not in words:
            yield path, ", ".join(chosen) or "nothing", f"one of {', '.join(words)} for {array.id}"
        elif node.operator in VIEWS:
            wanted = source_word(node, chosen[0], len(array.shape))
            if (wanted,) != tiling[node.inputs[0]]:
                held = ", ".join(tiling[node.inputs[0]])
                yield path, chosen[0], f"what its source {node.inputs[0]} with {held} has seen from {array.id}"


def run_findings(decisions: TilingDecisions) -> Iterator[Finding]:
    """Operators, moves and totals that are others than the tilings say."""
    expected = CountedTilings(decisions)
    for place, (found, wanted) in enumerate(zip(decisions.nodes, expected.nodes, strict=True)):
        for name in ("node", "reads", "makes"):
            if (seen := getattr(found, name)) != (right := getattr(wanted, name)):
                yield f"$.decisions.nodes[{place}].{name}", seen, f"{right} for {wanted.node}"
    yield from edge_findings(decisions, expected.edges)
    yield from expected.totals()


def edge_findings(decisions: TilingDecisions, wanted: list[TiledEdge]) -> Iterator[Finding]:
    """The first move that is not the one it should be."""
    for place, (found, right) in enumerate(zip(decisions.edges, wanted, strict=False)):
        for name in ("array", "node", "reading", "steps", "bytes", "cost"):
            if (seen := getattr(found, name)) != (expected := getattr(right, name)):
                what = f"{_said(expected)} of {right.array} at {right.node}"
                yield f"$.decisions.edges[{place}].{name}", _said(seen), what
                return
    if len(decisions.edges) != len(wanted):
        last = min(len(decisions.edges), len(wanted))
        missing = f"the next one is {wanted[last].array} at {wanted[last].node}" if last < len(wanted) else "no more"
        yield "$.decisions.edges", f"{len(decisions.edges)} moves", f"{len(wanted)}, {missing}"


def _said(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(f"{step.transfer}:{step.axis}:{','.join(step.tiling)}" for step in value) or "no step"
    return value


class CountedTilings:
    """Operators and moves as the tilings of a plan say."""

    def __init__(self, decisions: TilingDecisions) -> None:
        self.decisions, self.problem = decisions, decisions.problem
        self.arrays = {array.id: array for array in self.problem.arrays}
        self.word = {array.id: chosen[0] for array, chosen in zip(self.problem.arrays, decisions.tilings, strict=True)}
        self.counts = CountedElements(self.problem)
        self.nodes: list[NodeTiling] = []
        self.edges: list[TiledEdge] = []
        for node in self.problem.nodes:
            reads, makes = self._add(node)
            self.nodes.append(
                NodeTiling(node=node.id, reads=tuple((word,) for word in reads), makes=tuple((word,) for word in makes))
            )

    def _add(self, node: ArrayNode) -> tuple[list[str], list[str]]:
        """How the operator reads and makes; its moves are appended."""
        made = node.outputs[0]
        word, counts = self.word[made], self.counts
        first, reads = copies(word)[0], [copies(self.word[name])[0] for name in node.inputs]
        makes = first
        match node.operator:
            case "map":
                reads = [counts.read_word(name, made, first) for name in node.inputs]
                for number, name in enumerate(node.inputs):
                    self._move(name, node, number, reads[number], counts.map_read(name, made, self.word[name], word))
            case "filter":
                for number, name in enumerate(node.inputs[1:], 1):
                    reads[number] = first if first in ("S0", "B") else "R"
                    self._move(name, node, number, reads[number], counts.mask_read(name, made, self.word[name], word))
            case "fold" | "scan":
                found = counts.fold(node, self.word[node.inputs[0]], word)
                reads, makes = [found.reads], found.makes
                self._move(made, node, None, first, found.elements, "reduce")
            case "join_update":
                reads = [f"S{axis}" if axis >= 0 else "R" for axis in node.axes]
                for number, name in enumerate(node.inputs):
                    self._move(name, node, number, reads[number], counts.join_read(node, number, self.word[name]))
                makes = "S0" if node.update == "each" else "P"
                self._move(made, node, None, first, counts.update(node, word), "update")
        self._move(made, node, None, word, counts.second_copy(made, word), "duplicate")
        return reads, [makes]

    def _move(
        self,
        array: str,
        node: ArrayNode,
        reading: int | None,
        word: str,
        elements: Elements,
        transfer: Transfer | None = None,
    ) -> None:
        cost = elements.seed if self.problem.model == "seed" else elements.exact
        if cost or elements.exact:
            step = TransferStep(transfer=transfer or ("broadcast" if word == "R" else "retile"), tiling=(word,))
            moved = elements.exact * self.arrays[array].item_bytes
            self.edges.append(
                TiledEdge(array=array, node=node.id, reading=reading, steps=(step,), bytes=moved, cost=cost)
            )

    def totals(self) -> Iterator[Finding]:
        """Sums, memory, second copies, and what is too much of them."""
        problem, cost = self.problem, sum(edge.cost for edge in self.edges)
        right = {
            "cost": cost,
            "moved_bytes": sum(edge.bytes for edge in self.edges),
            "memory_bytes": max(self._memory(), default=0),
            "dup_bytes": sum(self._bytes(name) for name in self.word if self._is_twice(name)),
            "time_ns": published_ns(problem, cost),
        }
        for name, value in right.items():
            if (seen := getattr(self.decisions, name)) != value:
                yield f"$.decisions.{name}", seen, str(value)
        for name in ("memory_bytes", "dup_bytes"):
            limit = getattr(problem, name)
            if limit is not None and right[name] > limit:
                yield f"$.decisions.{name}", right[name], f"at most {limit}, the limit of the problem"

    def _bytes(self, name: str) -> int:
        return self.counts.size(name) * self.arrays[name].item_bytes

    def _is_twice(self, name: str) -> bool:
        return self.word[name] in TWICE and not self.counts.is_view(name)

    def _memory(self) -> Iterator[int]:
        """By operator, what the fullest worker holds: arrays from where they are made to where they are last read, be
        it through a view."""
        problem, origins = self.problem, self.counts.origins
        end, changes = len(problem.nodes), [dict[str, int]() for _ in range(len(problem.nodes) + 2)]
        born = {node.outputs[0]: place for place, node in enumerate(problem.nodes)}
        dies = {name: place for name, place in born.items() if origins[name].root == name}
        for place, node in enumerate(problem.nodes):
            for name in (*node.inputs, *node.outputs):
                dies[origins[name].root] = max(dies[origins[name].root], place)
        for name in problem.outputs:
            dies[origins[name].root] = end
        for name, last in dies.items():
            changes[born[name]][name] = 1
            changes[last + 1][name] = -1
        workers = problem.mesh[0].size
        full = [0] * workers
        for change in changes[:end]:
            for name, sign in change.items():
                for copy in copies(self.word[name]):
                    held = root_held(self.arrays[name].shape, copy, workers)
                    for worker, count in enumerate(counted(self.arrays[name].shape, held, workers)):
                        full[worker] += sign * count * self.arrays[name].item_bytes
            yield max(full)


def published_ns(problem: TilingProblem, cost: int) -> int:
    """A cost in elements as a time: the largest items over the slowest transfer of the axis."""
    axis = problem.mesh[0]
    rate = min((each.rate for each in axis.costs), default=10**9)
    largest = max((array.item_bytes for array in problem.arrays), default=1)
    return -(-cost * largest * 10**9 // (axis.size * rate))
