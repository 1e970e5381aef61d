"""A program as text that Python runs and treadle.planner.passes.fusion.parsing reads: `parse(show(program), ..)` is the
program."""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.dims import PARTS, Dim
from treadle.planner.passes.fusion.infer import retyped
from treadle.planner.passes.fusion.language import RESERVED
from treadle.planner.passes.fusion.layouts import FLAT, WORLD, Sliced, layout_text
from treadle.planner.passes.fusion.naming import canonical
from treadle.planner.passes.fusion.operations import COMPARISONS
from treadle.planner.passes.fusion.program import Input, Kernel, Node, Operand, Overlap, Program, TensorType
from treadle.planner.passes.fusion.rules.operands import scalar
from treadle.planner.passes.fusion.slice_maps import map_of

_INFIX = {
    "Or": ("|", 1),
    "Xor": ("^", 2),
    "And": ("&", 3),
    "Add": ("+", 4),
    "Sub": ("-", 4),
    "Mul": ("*", 5),
    "Div": ("/", 5),
    "Lt": ("<", 0),
    "Le": ("<=", 0),
    "Gt": (">", 0),
    "Ge": (">=", 0),
}
_PREFIX = {"Neg": "-", "Not": "~"}
UNARY, ATOM = 6, 9
"""How tightly operators bind, as in Python."""
_ORDER = {
    "Dropout": ("p", "key"),
    "Conv2d": ("stride", "padding"),
    "ReduceTensor": ("dim", "per"),
    "Norm": ("dim", "per"),
}
"""Attributes that are written by name, in this order."""
_DEFAULTS = {"stride": 1, "padding": 0, "dim": None, "per": None}


def show(program: Program) -> str:
    """Raises InputError for names that are no variables and for programs that retyped does not take."""
    program = canonical(retyped(program))
    variables = _variables(program)
    writer = _Writer(program, variables)
    visible = [node for node in program.nodes if not node.anonymous]
    lines = ["from treadle.fusion import *", ""]
    names = _dims(program)
    if names:
        called = ", ".join(variables["dim " + name] for name in names)
        lines += [f"{called} = dims({', '.join(_quoted(name) for name in names)})"]
    lines += writer.inputs()
    lines += [f"{node.name} = {writer.node(node)[0]}" for node in visible]
    lines += [writer.launch(launch) for launch in _in_order([*program.kernels, *program.overlaps])]
    given = ", ".join(variables[name] for name in program.input_names)
    made = ", ".join(variables[name] for name in program.outputs)
    lines += [f"{variables['program']} = Execute({_quoted(program.name)}, [{given}], [{made}])"]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Writer:
    program: Program
    variables: dict[str, str]

    def inputs(self) -> Iterable[str]:
        """One line for each tensor, and for scalars next to each other that share a dtype."""
        for kind, values in groupby(self.program.inputs, key=lambda of: of.type if scalar(of.type) else of.name):
            together = list(values)
            variables = ", ".join(self.variables[value.name] for value in together)
            of = together[0].type
            if isinstance(kind, TensorType) and of.group == WORLD:
                names = " ".join(value.name for value in together)
                yield f"{variables} = Scalars({_quoted(names)}, {self.dtype(of.dtype)})"
            else:
                yield from (f"{self.variables[value.name]} = {self.tensor(value)}" for value in together)

    def tensor(self, value: Input) -> str:
        of = value.type
        group = "" if of.group == WORLD else f", {of.group}"
        shape = ", ".join(self.extent(extent) for extent in of.shape)
        return f"Tensor({_quoted(value.name)}, {self.dtype(of.dtype)}, [{shape}], {layout_text(of.layout)}{group})"

    def extent(self, extent: Dim) -> str:
        factors = [str(extent.factor)] if extent.factor != 1 or not extent.names else []
        for name in extent.names:
            of = self.variables["dim " + name.removesuffix(PARTS)]
            factors.append(f"parts({of})" if name.endswith(PARTS) else of)
        return " * ".join(factors)

    @staticmethod
    def dtype(name: object) -> str:
        return "bool_" if name == "bool" else str(name)

    def node(self, node: Node) -> tuple[str, int]:
        """The expression, and how tightly its operator binds."""
        if node.op in _INFIX and (node.op not in COMPARISONS or isinstance(node.inputs[0], str)):
            sign, level = _INFIX[node.op]
            left, right = (self.operand(x) for x in node.inputs)
            first = left[0] if left[1] >= level + (level == 0) else f"({left[0]})"
            second = right[0] if right[1] > level else f"({right[0]})"
            return f"{first} {sign} {second}", level
        if node.op in _PREFIX:
            text, level = self.operand(node.inputs[0])
            return f"{_PREFIX[node.op]}{text if level >= UNARY else f'({text})'}", UNARY
        return f"{node.op if node.op != 'GroupSize' else 'group_size'}({', '.join(self.arguments(node))})", ATOM

    def operand(self, operand: Operand) -> tuple[str, int]:
        if not isinstance(operand, str):
            return repr(operand), UNARY if operand < 0 else ATOM
        of = self.program.by_name[operand]
        if isinstance(of, Node) and of.anonymous:
            return self.node(of)
        return self.variables[operand], ATOM

    def arguments(self, node: Node) -> list[str]:
        given = dict(node.attributes)
        values = [self.operand(operand)[0] for operand in node.inputs]
        match node.op:
            case "Cast":
                return [self.dtype(given["dtype"]), *values]
            case "GroupSize":
                group = next((value.type.group for value in self.program.inputs if value.type.group != WORLD), WORLD)
                return [group.name, *([] if given["dtype"] == "f32" else [self.dtype(given["dtype"])])]
            case "Slice" | "ReduceScatter":
                at, slice_map = given["dim"], map_of(given["map"])
                where = [] if at == FLAT else [f"dim={at}"]
                text = layout_text(Sliced(FLAT, slice_map)).removeprefix("Sliced(FLAT").removesuffix(")")
                where += [f"map={text.removeprefix(', ')}"] if text else []
                return [*([_quoted(str(given["op"]))] if "op" in given else []), *values, *where]
            case "Load" | "Broadcast":
                return [*values, f"root={given['root']}"]
            case "AllReduce" | "Reduce":
                root = [f"root={given['root']}"] if "root" in given else []
                return [_quoted(str(given["op"])), *values, *root]
            case "Send":
                source = self.program.type_of(node.inputs[0])
                offset = int(str(given["to"])) + (source.group.offset if source else 0)
                return [*values, f"GroupRank({node.type.group.name} + {offset}, RANK)"]
        first = [_quoted(str(given["op"]))] if "op" in given else []
        keys = [key for key in _ORDER.get(node.op, ()) if key not in _DEFAULTS or given[key] != _DEFAULTS[key]]
        return [*first, *values, *(f"{key}={_constant(given[key])}" for key in keys)]

    def launch(self, launch: Kernel | Overlap) -> str:
        policy = [_quoted(launch.policy)] if isinstance(launch, Kernel) else []
        call = "fuse" if isinstance(launch, Kernel) else "overlap"
        return f"{launch.name} = {call}({', '.join([*policy, *launch.members])})"


def _in_order(launches: list[Kernel | Overlap]) -> Iterable[Kernel | Overlap]:
    """Kernels before those that run them inside."""
    waiting, names = list(launches), {launch.name for launch in launches}
    while waiting:
        ready = [launch for launch in waiting if not names & set(launch.members)]
        if not ready:
            raise InputError(f"found kernels {', '.join(sorted(names))} inside each other, expected none to run itself")
        yield ready[0]
        waiting.remove(ready[0])
        names.discard(ready[0].name)


def _variables(program: Program) -> dict[str, str]:
    """Variables by the name of a value, of a dimension (after `dim `), and of the program."""
    found: dict[str, str] = {}
    taken = set(RESERVED)

    def take(key: str, name: str, exact: bool) -> None:
        while name in taken or keyword.iskeyword(name):
            if exact:
                raise InputError(f"found the name {name!r} twice or as a word of the language, expected another")
            name += "_"
        if not name.isidentifier() or name.startswith("_"):
            raise InputError(f"found the name {name!r}, expected one that a variable can have")
        found[key] = name
        taken.add(name)

    for node in program.nodes:
        if not node.anonymous:
            take(node.name, node.name, exact=True)
    for name in (*(kernel.name for kernel in program.kernels), *(chain.name for chain in program.overlaps)):
        take(name, name, exact=True)
    for name in _dims(program):
        take("dim " + name, name, exact=False)
    for value in program.inputs:
        take(value.name, value.name, exact=False)
    take("program", "program", exact=False)
    return found


def _dims(program: Program) -> list[str]:
    """Dimensions in the order in which inputs name them."""
    names = (name for value in program.inputs for extent in value.type.shape for name in extent.names)
    return list(dict.fromkeys(name.removesuffix(PARTS) for name in names))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _constant(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else repr(value)
