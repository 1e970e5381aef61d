"""The greedy search of the paper, run again by the checker on costs that it counted itself.

Groups are arrays, the copies that a join_update reads, and its meeting place. A pair of groups has a table of costs;
None forbids a pair of tilings.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.passes.tiling.check_elements import CountedElements
from treadle.planner.passes.tiling.check_places import TWICE, VIEWS
from treadle.planner.passes.tiling.check_published import Finding, source_word, words_of
from treadle.planner.passes.tiling.decisions import GreedyStep, TilingDecisions
from treadle.planner.passes.tiling.problem import ArrayNode, TilingProblem

Table = list[list[int | None]]


def greedy_findings(decisions: TilingDecisions) -> Iterator[Finding]:
    """The first step that the search would not have taken, and tilings that are not its choices."""
    if not decisions.steps and decisions.method != "greedy":
        return
    replayed = GreedyReplay(decisions.problem)
    steps = replayed.steps()
    for place, (found, right) in enumerate(zip(decisions.steps, steps, strict=False)):
        for name in ("group", "costs", "choice"):
            if (seen := getattr(found, name)) != (expected := getattr(right, name)):
                yield f"$.decisions.steps[{place}].{name}", seen, f"{expected} for {right.group}"
                return
    if len(decisions.steps) != len(steps):
        yield "$.decisions.steps", f"{len(decisions.steps)} steps", f"{len(steps)}, one for each group"
    if decisions.method == "greedy":
        for place, array in enumerate(decisions.problem.arrays):
            chosen = replayed.chosen(array.id)
            if decisions.tilings[place] != (chosen,):
                yield f"$.decisions.tilings[{place}]", decisions.tilings[place][0], f"{chosen}, which its steps chose"


class GreedyReplay:
    """Words that are left to each group, and tables of pairs in the order in which they were made."""

    def __init__(self, problem: TilingProblem) -> None:
        self.problem, self.counts = problem, CountedElements(problem)
        self.left: dict[str, list[int]] = {}
        self.words: dict[str, tuple[str, ...]] = {}
        self.own: dict[str, list[int]] = {}
        self.tables: dict[tuple[str, str], Table] = {}
        self.views: set[tuple[str, str]] = set()
        words = words_of(problem)
        self.bytes = {array.id: self.counts.size(array.id) * array.item_bytes for array in problem.arrays}
        for node in problem.nodes:
            made = node.outputs[0]
            if node.operator == "join_update":
                self._joined(node)
            self._group(made, words[made])
            self.own[made] = [self._cost(self.counts.second_copy(made, word)) for word in self.words[made]]
            self._enter(node, made)
        self.near: dict[str, list[str]] = {name: [] for name in self.words}
        for one, other in self.tables:
            self.near[one].append(other)
            self.near[other].append(one)

    def _cost(self, elements: tuple[int, int]) -> int:
        return elements[self.problem.model != "seed"]

    def _group(self, name: str, words: tuple[str, ...]) -> None:
        self.words[name], self.left[name], self.own[name] = words, [*range(len(words))], [0] * len(words)

    def _pair(self, one: str, other: str, table: Table) -> None:
        """Readings of one array by one operator are added."""
        if before := self.tables.get((one, other)):
            table = [
                [None if a is None or b is None else a + b for a, b in zip(*rows, strict=True)]
                for rows in zip(before, table, strict=True)
            ]
        self.tables[one, other] = table

    def _joined(self, node: ArrayNode) -> None:
        inner = []
        for number, name in enumerate(node.inputs):
            inner.append(f"{node.id}:{number}")
            self._group(inner[-1], (f"S{node.axes[number]}" if node.axes[number] >= 0 else "R",))
            table: Table = [[self._cost(self.counts.join_read(node, number, t))] for t in self.words[name]]
            self._pair(name, inner[-1], table)
        self._group(f"{node.id}:join", ("join",))
        for name in inner:
            self._pair(name, f"{node.id}:join", [[0]])

    def _enter(self, node: ArrayNode, made: str) -> None:
        words, counts = self.words[made], self.counts
        if node.operator == "join_update":
            self._pair(f"{node.id}:join", made, [[self._cost(counts.update(node, u)) for u in words]])
        for number, name in enumerate(node.inputs):
            if node.operator == "map":
                table: Table = [
                    [self._cost(counts.map_read(name, made, t, u)) for u in words] for t in self.words[name]
                ]
            elif node.operator in VIEWS and not number:
                rank = len(counts.shapes[made])
                table = [[0 if source_word(node, u, rank) == t else None for u in words] for t in self.words[name]]
                self.views.add((name, made))
            elif node.operator == "filter":
                table = [[self._cost(counts.mask_read(name, made, t, u)) for u in words] for t in self.words[name]]
            elif node.operator in ("fold", "scan"):
                table = [[self._cost(counts.fold(node, t, u).elements) for u in words] for t in self.words[name]]
            else:
                continue
            self._pair(name, made, table)

    def steps(self) -> list[GreedyStep]:
        """All decisions, in order. Ends early where a group has nothing left, which no plan follows."""
        self._narrow()
        found = list[GreedyStep]()
        for name in sorted(self.words, key=lambda name: -len({*self.near[name]})):
            costs = [self._find_cost(name, label) for label in range(len(self.words[name]))]
            possible = [cost for cost in costs if cost is not None]
            if not possible:
                return found
            choice = costs.index(min(possible))
            self.left[name] = [choice]
            self._narrow()
            found.append(GreedyStep(group=name, costs=tuple(costs), choice=choice))
        return found

    def chosen(self, name: str) -> str:
        return self.words[name][self.left[name][0]] if self.left[name] else "nothing"

    def _find_cost(self, name: str, label: int) -> int | None:
        if label not in self.left[name]:
            return None
        total = self.own[name][label]
        for other in self.near[name]:
            row = self._row(name, label, other)
            if (name, other) in self.views:
                forced = [place for place, cost in enumerate(row) if cost is not None]
                least = self._find_cost(other, forced[0]) if forced else None
            else:
                least = min((cost for each in self.left[other] if (cost := row[each]) is not None), default=None)
            if least is None:
                return None
            total += least
        return total

    def _row(self, name: str, label: int, other: str) -> list[int | None]:
        """What `label` of a group costs with each label of another one."""
        if (name, other) in self.tables:
            return self.tables[name, other][label]
        return [row[label] for row in self.tables[other, name]]

    def _narrow(self) -> None:
        """Views and sources keep words that have a partner, before and after those go that the budget of second copies
        does not leave."""
        while self._without_partners():
            pass
        self._keep_affordable()
        while self._without_partners():
            pass

    def _without_partners(self) -> bool:
        changed = False
        for one, other in self.views:
            for name, far in ((one, other), (other, one)):
                kept = [
                    label
                    for label in self.left[name]
                    if any(self._row(name, label, far)[each] is not None for each in self.left[far])
                ]
                changed |= len(kept) < len(self.left[name])
                self.left[name] = kept
        return changed

    def _keep_affordable(self) -> None:
        def takes(name: str, label: int) -> int:
            twice = self.words[name][label] in TWICE and not self.counts.is_view(name)
            return self.bytes[name] if twice else 0

        arrays = [name for name in self.bytes if self.left[name]]
        least = {name: min(takes(name, label) for label in self.left[name]) for name in arrays}
        rest = self.problem.dup_bytes - sum(least.values())
        for name in arrays:
            self.left[name] = [label for label in self.left[name] if takes(name, label) - least[name] <= rest]
