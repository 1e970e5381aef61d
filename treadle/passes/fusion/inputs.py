"""What `treadle plan fusion` is given, as a program and what it is bound to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from treadle.capture.load import load_module
from treadle.planner.documents.files import read_text
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.quantities import Spread, parse_list, parse_named, parse_number, parse_values
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.dims import PARTS, volume
from treadle.planner.passes.fusion.layouts import WORLD
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Bindings, Program

EXAMPLE = "NAME=NUMBER such as N=1M"
MOST_SIZES = 64
MOST_ELEMENTS = 2**48
"""The most elements of one tensor: 512 TiB of f16. Times of larger ones leave the range of a plan."""


def load_program(name: str) -> Program:
    """The program in a file of program text, which is not run, or at MODULE:NAME, which is imported.

    Raises InputError for anything else.
    """
    if Path(name).is_file() or name.endswith(".py"):
        return parse(read_text(name), name)
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise InputError(f"found {name!r}, expected a file of program text, or MODULE:NAME", where="PROGRAM")
    found = getattr(load_module(module, name), attribute, None)
    if not isinstance(found, Program):
        what = f"no {attribute!r}" if found is None else f"a {type(found).__name__}"
        raise InputError(f"found {what} in {module}, expected a program, as Execute makes it", where=name)
    return found


def extents_of(bind: Sequence[str]) -> dict[str, int]:
    """`B=8,S=1K` as numbers by dimension. Raises InputError for anything else."""
    words = [word for text in bind for word in text.split(",")]
    return {name: extent(text, "--bind") for name, text in parse_named(words, EXAMPLE, where="--bind").items()}


def extent(text: str, where: str) -> int:
    """Elements along a dimension."""
    return parse_number(text, most=MOST_ELEMENTS, where=where)


def bindings_of(
    program: Program,
    hardware: Hardware,
    bind: Sequence[str],
    parts: Sequence[str],
    ranks: int | None,
    groups: int | None,
) -> Bindings:
    """Extents, ranks and groups. By default all devices take part: as one group, or for a program of groups as one
    group for each node. Raises InputError for dimensions without a value, values without a dimension, and too many
    ranks."""
    item = partial(extent, where="--parts")
    sizes = {name: parse_list(text, item) for name, text in parse_named(parts, EXAMPLE, where="--parts").items()}
    extents = extents_of(bind)
    for name, each in sizes.items():
        if extents.setdefault(name, sum(each)) != sum(each):
            raise InputError(f"found {name}={extents[name]}, its parts sum up to {sum(each)}", where="--parts")
    used = dimensions(program)
    missing, unknown = sorted(used - set(extents)), sorted(set(extents) - used)
    if unknown:
        known = ", ".join(sorted(used)) or "none"
        raise InputError(f"found {', '.join(unknown)}, the dimensions of {program.name} are {known}", where="--bind")
    if missing:
        raise InputError(f"found no value for {', '.join(missing)}, expected {missing[0]}=NUMBER", where="--bind")
    require_sizes(program, extents)
    grouped = any(value.type.group != WORLD for value in program.inputs if value.type.shape)
    devices = hardware.ranks
    groups = groups or (max(2, hardware.nodes) if grouped else 1)
    if not grouped and groups != 1:
        raise InputError(f"found {groups}, {program.name} is one of WORLD and has no groups", where="--groups")
    if groups < reach(program):
        why = f"{program.name} sends to the next group"
        raise InputError(f"found {groups}, expected at least {reach(program)}: {why}", where="--groups")
    ranks = ranks or devices // groups
    require_ranks(ranks, groups, hardware)
    return Bindings(extents, ranks, groups, sizes)


def require_ranks(ranks: int, groups: int, hardware: Hardware) -> None:
    """Raises InputError for more ranks than the machine has devices."""
    devices = hardware.ranks
    if ranks < 1 or ranks * groups > devices:
        each = many(max(1, ranks), "rank")
        what = f"{many(groups, 'group')} of {each}" if groups > 1 else each
        raise InputError(f"found {what}, {hardware.name} has {many(devices, 'device')}; see --nodes", where="--ranks")


def require_sizes(program: Program, extents: Mapping[str, int]) -> None:
    """Raises InputError for a tensor with more elements than a plan has a time for."""
    for value in program.by_name.values():
        known = {**extents, **{each: 1 for extent in value.type.shape for each in extent.names if each not in extents}}
        if (elements := volume(value.type.shape).value(known)) > MOST_ELEMENTS:
            message = f"found {elements:,} elements in {value.name}, expected at most {MOST_ELEMENTS:,}"
            raise InputError(message, where="--bind")


def reach(program: Program) -> int:
    """How many groups a program needs: its own, and those that it sends to."""
    return 1 + max(value.type.group.offset for value in program.by_name.values())


def dimensions(program: Program) -> set[str]:
    """Names of the dimensions in the shapes of a program."""
    shapes = (value.type.shape for value in program.by_name.values())
    names = {name for shape in shapes for each in shape for name in each.names}
    return {name for name in names if not name.endswith(PARTS)}


def sweep_of(text: str) -> tuple[str, tuple[int, ...]]:
    """`N=1K..1G` as the dimension and its sizes, each four times the one before; `N=1K..1G:2` twice, `N=1K,8K` these.
    Raises InputError for anything else."""
    ((name, span),) = parse_named([text], "NAME=FROM..TO such as N=1K..1G", where="--sweep").items()
    item = partial(extent, where="--sweep")
    return name, parse_values(span, item, Spread.by_factor(4, MOST_SIZES), where="--sweep")
