"""What plans of compression are compared with: other systems, and Espresso's search in parts of its space.

The systems choose an option for each gradient without regard to the others. A crippled search is that of Espresso
("Hi-Speed DNN Training with Espresso: Unleashing the Full Potential of Gradient Compression with Near-Optimal Usage
Strategies"), section 4.8.6, over fewer options. Those that group gradients are from Cupcake ("Cupcake: A Compression
Scheduler for Scalable Communication-Efficient Distributed Training").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from treadle.planner.documents.compression_costs import Curve
from treadle.planner.passes.compression.candidates import (
    Named,
    allowed,
    between_nodes,
    inter_allgather,
    named_options,
    places_of,
)
from treadle.planner.passes.compression.decided import plain_groups, plain_option
from treadle.planner.passes.compression.decisions import GradientGroup, Groups
from treadle.planner.passes.compression.espresso_device import (
    by_gradient,
    greedily,
    options_on,
)
from treadle.planner.passes.compression.espresso_host import offload
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.options import Option
from treadle.planner.passes.compression.payload import Prices
from treadle.planner.passes.compression.problem import DTYPE_BYTES, CompressionProblem
from treadle.planner.search.clock import Expired, never

BUCKET_MB = (2, 4, 8, 16, 32, 64)
EVEN_GROUPS = range(2, 33)
Title = str
Making = tuple[Title, Callable[[], Groups | None]]


def baselines(evaluator: Evaluator, compressor: str | None = None, *, expired: Expired = never) -> dict[Title, Groups]:
    """An option for each gradient by every system and crippled search, with one compressor, by default the first of the
    problem. Left out are those whose options the problem does not have, and those whose turn comes after `expired`."""
    name = next(iter(evaluator.problem.names), None) if compressor is None else compressor
    return _made(
        evaluator, (*_uncompressed(evaluator), *(_compressed(evaluator, name, expired) if name else ())), expired
    )


def grouped_baselines(
    evaluator: Evaluator, compressor: str | None = None, *, expired: Expired = never
) -> dict[Title, Groups]:
    """Gradients in buckets of the best of some sizes, in the best of some numbers of groups, and each on its own, all
    compressed on the device between nodes; and in buckets without compression. Otherwise as `baselines`."""
    name = next(iter(evaluator.problem.names), None) if compressor is None else compressor
    return _made(evaluator, _fused(evaluator, name), expired)


def _made(evaluator: Evaluator, titles: Iterable[Making], expired: Expired) -> dict[Title, Groups]:
    found: dict[Title, Groups] = {}
    for title, make in titles:
        if found and expired():
            break
        groups = make()
        if found and expired():  # what was cut is not what its title says
            break
        if groups and all(allowed(evaluator.problem, group.steps) for group in groups):
            found[title] = groups
    return found


def upper_bound_ns(problem: CompressionProblem, compressor: str) -> int:
    """ns of an iteration in which compression takes no time (Espresso, section 4.8.1), as algorithm 4.1 finds it: the
    bound of the paper, no lower bound of all plans."""
    free = [
        replace(cost, place="host", encode=Curve(points=((1, 0),)), decode=())
        for cost in problem.compressors
        if cost.name == compressor
    ][:1]
    evaluator = Evaluator(replace(problem, compressors=tuple(free)))
    start = plain_groups(problem)
    return greedily(evaluator, start, options_on(evaluator.problem, "host"), bubble_pruning=False).ns


def inter_alltoall(problem: CompressionProblem, place: str) -> Option:
    """The same by an alltoall, and an allgather of what its receivers have summed."""
    encode, decode = f"compress@{place}", f"decompress@{place}"
    return between_nodes(problem, encode, "alltoall@SCOPE", decode, encode, "allgather@SCOPE", decode)


def alltoall_twice(place: str) -> Option:
    """Compressed inside and between nodes."""
    encode, decode = f"compress@{place}", f"decompress@{place}"
    inside = (encode, "alltoall@intra", decode)
    between = (encode, "alltoall@inter", decode, encode, "allgather@inter")
    return (*inside, *between, "allgather@intra", decode)


def _uncompressed(evaluator: Evaluator) -> Iterator[Making]:
    problem = evaluator.problem
    dense = [named for named in named_options(problem) if named[0] is None]
    yield "FP32", lambda: plain_groups(problem)
    yield "fastest uncompressed", lambda: _best(evaluator, (by_gradient(problem, named) for named in dense))


def _fused(evaluator: Evaluator, name: str | None) -> Iterator[Making]:
    problem = evaluator.problem
    plain: Named = (None, plain_option(problem))
    yield "buckets, FP32", lambda: _best(evaluator, _buckets(problem, plain))
    if name is not None:
        gathered: Named = (name, inter_allgather(problem, places_of(problem, name)[0]))
        yield "GRACE", lambda: by_gradient(problem, gathered)
        yield "buckets", lambda: _best(evaluator, _buckets(problem, gathered))
        yield "even split", lambda: _best(evaluator, _even(problem, gathered))


def _compressed(evaluator: Evaluator, name: str, expired: Expired) -> Iterator[Making]:
    problem = evaluator.problem
    places = places_of(problem, name)
    first = places[0]
    gathered: Named = (name, inter_allgather(problem, first))
    plain: Named = (None, plain_option(problem))
    if "device" in places:
        yield "HiTopKComm", lambda: by_gradient(problem, gathered)
        yield "HiPress", lambda: _quickest(problem, (plain, gathered, (name, inter_alltoall(problem, "device"))))
    if "host" in places:
        yield "BytePS-Compress", lambda: by_gradient(problem, (name, inter_alltoall(problem, "host")))
    flat = (f"compress@{first}", "allgather@flat", f"decompress@{first}")
    yield "everything, flat allgather", lambda: by_gradient(problem, (name, flat))

    on = {place: _of(name, options_on(problem, place)) for place in places}

    def searched(options: Iterable[Named], start: Named = plain) -> Groups:
        found = greedily(evaluator, by_gradient(problem, start), tuple(options), bubble_pruning=False, expired=expired)
        return offload(evaluator, found.groups, expired=expired).groups

    yield "all compression", lambda: searched((named for named in on[first] if named[0]), gathered)
    yield "myopic", lambda: _quickest(problem, [plain, *(named for place in places for named in on[place])])
    for place in places:
        yield (
            f"{place} only",
            lambda place=place: (
                greedily(  # type: ignore[misc]
                    evaluator, by_gradient(problem, plain), on[place], expired=expired
                ).groups
            ),
        )
    yield "inter allgather", lambda: searched([gathered])
    yield "inter alltoall", lambda: searched([(name, inter_alltoall(problem, first))])
    if problem.hierarchical:
        yield "alltoall and alltoall", lambda: searched([(name, alltoall_twice(first))])


def _of(name: str, options: Iterable[Named]) -> tuple[Named, ...]:
    return tuple(named for named in options if named[0] in (None, name))


def _quickest(problem: CompressionProblem, options: Iterable[Named]) -> Groups:
    """For each gradient the option whose steps take the least time in a row; the first of several."""
    choices = list(options)

    def quickest(elements: int) -> Named:
        prices = Prices(problem, elements)
        return min(choices, key=lambda named: sum(work.ns for work in prices.works(*named)))

    best = {elements: quickest(elements) for elements in {gradient.elements for gradient in problem.gradients}}
    return tuple(
        GradientGroup(first=place, last=place, compressor=best[gradient.elements][0], steps=best[gradient.elements][1])
        for place, gradient in enumerate(problem.gradients)
    )


def _buckets(problem: CompressionProblem, named: Named) -> Iterator[Groups]:
    """Groups that end once they have a number of bytes."""
    for size in BUCKET_MB:
        ends, held = [], 0
        for place, gradient in enumerate(problem.gradients):
            held += DTYPE_BYTES * gradient.elements
            if held > size << 20 or place == len(problem.gradients) - 1:
                ends.append(place)
                held = 0
        yield from _grouped(problem, ends, named)


def _even(problem: CompressionProblem, named: Named) -> Iterator[Groups]:
    """Groups of as many gradients each."""
    gradients = len(problem.gradients)
    for groups in EVEN_GROUPS:
        if groups <= gradients:
            yield from _grouped(problem, [gradients * (one + 1) // groups - 1 for one in range(groups)], named)


def _grouped(problem: CompressionProblem, ends: list[int], named: Named) -> Iterator[Groups]:
    """The groups that end there, unless one of several gradients has more bytes than the problem lets it have."""
    found = [
        GradientGroup(first=first, last=last, compressor=named[0], steps=named[1])
        for first, last in zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True)
    ]
    if all(problem.fits(group.first, group.last) for group in found):
        yield tuple(found)


def _best(evaluator: Evaluator, trials: Iterable[Groups]) -> Groups | None:
    """The one of the least time, the first of several."""
    return min(trials, key=evaluator.time, default=None)
