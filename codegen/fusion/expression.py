"""Pointwise members of a stage as a C++ functor: one line for each named operation (CoCoNet, section 5).

    struct NAME {
        struct Operands { pointers and scalars, the same for all elements };
        template <int N> static Pack<Out, N> apply(const Operands &, int64_t global, int64_t local, Pack<In, N> value);
    };

`global` and `local` number the first of N elements in the whole tensor and in this rank's slice of it. What a stage
computes from scalars alone is computed once, in `operands`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from treadle.codegen.fusion.broadcast import EndTable, extended, index_of, part_ends, split
from treadle.codegen.fusion.kernel import Buffer
from treadle.codegen.fusion.slices import slice_type
from treadle.codegen.templates import template
from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import BYTES, Dtype
from treadle.planner.passes.fusion.dims import Shape, volume
from treadle.planner.passes.fusion.dropout import op_key, scale, threshold
from treadle.planner.passes.fusion.layouts import Layout, Local, Sliced
from treadle.planner.passes.fusion.operations import BINARY, LOGIC, UNARY
from treadle.planner.passes.fusion.program import Bindings, Node, Operand, Program, TensorType
from treadle.planner.passes.fusion.rules.elementwise import broadcast as common_shape

PACK_BYTES = 16
"""What a thread moves at once under the protocols Simple and LL128 (CoCoNet, section 5.2)."""
CPP: dict[Dtype, str] = {
    "f16": "f16",
    "bf16": "bf16",
    "f32": "float",
    "f64": "double",
    "i32": "int32_t",
    "i64": "int64_t",
    "bool": "bool",
}
VIEWS = frozenset({"Slice", "Load"})
"""Operations that only say which part of a tensor is meant."""
FUNCTIONS = {
    **{name: name.lower() for name in (*UNARY, *BINARY, "Where")},
    **{name: name.lower() + "_" for name in ("Not", *LOGIC)},
}
_RESERVED = re.compile(
    r"N|alignas|alignof|and|and_eq|asm|at|auto|bitand|bitor|bool|break|case|cast|catch|char|class|compl|const"
    r"|constexpr|continue|default|delete|do|double|else|enum|explicit|export|extern|f16|bf16|false|float|for|friend"
    r"|global|goto|if|inline|int|local|long|mutable|namespace|new|noexcept|not|not_eq|nullptr|operator|or|or_eq"
    r"|private|protected|public|rank|register|return|rows|short|signed|sizeof|static|struct|switch|task|template|this"
    r"|throw|true|try|typedef|typeid|typename|union|unsigned|using|virtual|void|volatile|while|xor|xor_eq|step|seed"
    r"|place|buffer|gather|repeat|load_user|store_user|part_of|op|i"
)
"""Words of C++, and names that functors use themselves."""


@dataclass(frozen=True)
class Scope:
    """Where the values of a program lie while a schedule of it runs: `places` has the number of each one's buffer. The
    value of an Update lies in its target, a view where the tensor lies that it shows."""

    program: Program
    bindings: Bindings
    buffers: Sequence[Buffer]
    places: Mapping[str, int]
    scattered: frozenset[str] = frozenset()
    """Buffers that consist of many tensors, allocated apart: they hold tables (templates/fusion/treadle_buckets.h)."""

    def storage(self, name: str) -> tuple[int, Buffer]:
        """Raises InputError for a value that is kept nowhere."""
        value = self.program.by_name[name]
        while name not in self.places and isinstance(value, Node) and value.op in VIEWS | {"Update"}:
            name = str(value.inputs[0])
            value = self.program.by_name[name]
        if name not in self.places:
            raise InputError(f"found no buffer for {name!r}, expected one as another kernel reads or writes it")
        return self.places[name], self.buffers[self.places[name]]

    def extents(self, shape: Shape) -> tuple[int, ...]:
        return tuple(extent.value(self.bindings.values) for extent in shape)


@dataclass(frozen=True)
class Functor:
    """`value` and `result` are the dtypes of what goes in and comes out, `pack` the elements that a thread takes."""

    name: str
    text: str
    pack: int
    value: Dtype | None
    result: Dtype | None
    loads: tuple[str, ...]
    stores: tuple[str, ...]
    scattered: str = ""
    """The operand, if any, whose table of buckets says in which order to go."""


def identifier(name: str) -> str:
    """A name that C++ takes for a variable."""
    name = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"x{name}" if name[:1].isdigit() else f"{name}_" if _RESERVED.fullmatch(name) else name


def elements_per_pack(dtypes: Iterable[Dtype]) -> int:
    """How many elements a thread takes at once: the widest type fills a pack (CoCoNet, section 5.5)."""
    return PACK_BYTES // max((BYTES[dtype] for dtype in dtypes), default=4)


def literal(number: float, dtype: Dtype) -> str:
    """A number as C++ of this type."""
    if dtype == "bool":
        return "true" if number else "false"
    if dtype in ("i32", "i64"):
        return f"{CPP[dtype]}({int(number)})"
    if not math.isfinite(number):
        text = "float(NAN)" if math.isnan(number) else f"float({'-' if number < 0 else ''}INFINITY)"
    else:
        text = repr(float(number)) + ("f" if dtype == "f32" else "")
    return text if dtype in ("f32", "f64") else f"convert<{CPP[dtype]}>({text})"


def functor(
    scope: Scope,
    name: str,
    members: Sequence[Node],
    *,
    value: str | None = None,
    result: str | None = None,
    stores: Sequence[str] = (),
    rows: Sequence[str] = (),
    rows_type: str = "",
    again: frozenset[str] = frozenset(),
    reduced: Mapping[str, int] | None = None,
) -> Functor:
    """The functor that computes `result` from `value`, both passed in registers, and stores `stores` meanwhile.

    `members` are in running order; unused ones are left out. Values in `rows` are the same for a row of the last
    dimension and are passed in a struct of `rows_type`; those in `reduced` lie at an offset of the arena. What else is
    read is loaded from its buffer, uncounted when it is loaded `again`. Raises InputError for a value that is stored
    while it is smaller than the others, and for operations that are not pointwise.
    """
    ends = (*stores, *([result] if result else []))
    wanted = _wanted(members, ends)
    extra = (tuple(rows), rows_type, again, reduced or {})
    return _Writer(scope, name, wanted, value, result, tuple(stores), *extra).functor


def _wanted(members: Sequence[Node], ends: Iterable[str]) -> tuple[Node, ...]:
    """The members that `ends` depend on, through members alone."""
    wanted = set(ends)
    for node in reversed(members):
        if node.name in wanted:
            wanted.update(node.reads)
    return tuple(node for node in members if node.name in wanted)


@dataclass(frozen=True)
class _Writer:
    scope: Scope
    name: str
    members: tuple[Node, ...]
    value: str | None
    result: str | None
    stores: tuple[str, ...]
    rows: tuple[str, ...]
    rows_type: str
    again: frozenset[str]
    reduced: Mapping[str, int]

    @cached_property
    def functor(self) -> Functor:
        value, result = ((name and self.type(name).dtype) or None for name in (self.value, self.result))
        scalars = [node for node in self.visible if self.scalar(node.name)]
        lines = [node for node in self.visible if not self.scalar(node.name)]
        vectors = (*self.streams, *self.passing, *(node.name for node in lines))
        pack = elements_per_pack(self.type(name).dtype for name in vectors)
        loaded = [name for name in self.streams if name not in self.reduced]
        loaded += [self.source(name) for node in self.permuted for name in node.reads]
        places = dict(map(self.scope.storage, (*loaded, *self.stores)))
        text = template("fusion/expression.cu.j2").render(
            name=self.name,
            about=", ".join([node.name for node in self.members if not node.anonymous] or self.stores or self.passing),
            program=self.scope.program.name,
            pack=pack,
            value=value and (CPP[value], identifier(str(self.value))),
            result=result and (CPP[result], self.pack_of(str(self.result))),
            rows_type=self.rows_type,
            reduced=[
                (CPP[self.type(name).dtype], self.pointer(name), self.reduced[name])
                for name in self.streams
                if name in self.reduced
            ],
            pointers=[
                (self.pointed(buffer), identifier(buffer.name), index) for index, buffer in sorted(places.items())
            ],
            cursors=self.cursors,
            scalar_loads=[(*self.declared(name), self.scalar_load(name)) for name in self.scalar_loads],
            scalars=[(*self.declared(node.name), self.expression(node)) for node in scalars],
            random=self.random,
            place=self.place,
            ranks=self.scope.bindings.ranks,
            parts=self.parts,
            loads=[(identifier(name), self.load(name)) for name in self.streams],
            lines=[(identifier(node.name), self.expression(node)) for node in lines],
            stores=[self.store(name) for name in self.stores],
        )
        tables = [name for name in (*self.streams, *self.stores) if self.scattered(name)]
        table = identifier(self.scope.storage(tables[0])[1].name) if tables else ""
        return Functor(self.name, text, pack, value, result, self.streams, self.stores, table)

    def pointed(self, buffer: Buffer) -> str:
        return "const Scattered" if buffer.name in self.scope.scattered else CPP[buffer.dtype]

    def scattered(self, name: str) -> bool:
        """Raises InputError for a scattered tensor in slices, or one that is broadcast."""
        if name in self.reduced or (buffer := self.scope.storage(name)[1]).name not in self.scope.scattered:
            return False
        if isinstance(buffer.layout, Sliced) or extended(self.type(name).shape, self.shape) != self.shape:
            raise InputError(
                f"{buffer.name}: found a scattered tensor sliced or broadcast, expected all elements of it"
            )
        return True

    @cached_property
    def cursors(self) -> bool:
        return any(self.scattered(name) for name in (*self.streams, *self.stores))

    def declared(self, name: str) -> tuple[str, str]:
        return CPP[self.type(name).dtype], identifier(name)

    def type(self, name: str) -> TensorType:
        return self.scope.program.by_name[name].type

    @cached_property
    def computed(self) -> dict[str, Node]:
        return {node.name: node for node in self.members if node.op not in VIEWS}

    def source(self, name: str) -> str:
        """The value that a view shows."""
        node = self.scope.program.by_name[name]
        while isinstance(node, Node) and node.op in VIEWS and name not in (self.value, *self.rows):
            name = str(node.inputs[0])
            node = self.scope.program.by_name[name]
        return name

    @cached_property
    def permuted(self) -> tuple[Node, ...]:
        """Members that take rows in another order, straight from memory."""
        return tuple(node for node in self.computed.values() if node.op == "Permute")

    @cached_property
    def read(self) -> tuple[str, ...]:
        """Values from elsewhere, each once, in the order of use."""
        nodes = [node for node in self.computed.values() if node not in self.permuted]
        found = [self.source(name) for node in nodes for name in node.reads]
        found += [self.source(name) for name in (*self.stores, *([self.result] if self.result else []))]
        known = {*self.computed, *self.rows, self.value}
        return tuple(name for name in dict.fromkeys(found) if name not in known)

    @cached_property
    def passing(self) -> tuple[str, ...]:
        return tuple(name for name in (self.value, self.result) if name)

    @cached_property
    def shape(self) -> Shape:
        """The shape of all elements that the functor runs through: every other shape is broadcast to it."""
        names = [*self.passing, *self.stores, *self.read, *self.computed]
        return common_shape(self.name, [self.type(name).shape for name in names])

    def scalar(self, name: str) -> bool:
        """Whether a value is computed once for all elements."""
        if volume(self.shape).one or name in (self.value, *self.rows):
            return False
        if name in self.computed:
            node = self.computed[name]
            return (
                volume(node.type.shape).one
                and node.op != "Dropout"
                and all(self.scalar(self.source(x)) for x in node.reads)
            )
        return volume(self.type(name).shape).one

    @cached_property
    def scalar_loads(self) -> tuple[str, ...]:
        return tuple(name for name in self.read if self.scalar(name))

    def scalar_load(self, name: str) -> str:
        dtype = CPP[self.type(name).dtype]
        if name in self.reduced:
            return f"*reinterpret_cast<const {dtype} *>(task.arenas[rank] + {self.reduced[name]})"
        return f"*buffer<{dtype}>(task, rank, {self.scope.storage(name)[0]})"

    @cached_property
    def streams(self) -> tuple[str, ...]:
        return tuple(name for name in self.read if not self.scalar(name))

    @cached_property
    def visible(self) -> tuple[Node, ...]:
        """Members with a line of their own. Anonymous ones stand where they are used, if that is at one place."""
        uses = Counter(self.source(x) for node in self.computed.values() for x in node.inputs if isinstance(x, str))
        ends = {*self.stores, self.result}
        return tuple(
            node
            for name, node in self.computed.items()
            if node.op != "GroupSize" and (not node.anonymous or uses[name] != 1 or name in ends or self.hoisted(name))
        )

    def hoisted(self, name: str) -> bool:
        """Whether an anonymous scalar is used among elements, so that it needs a name."""
        readers = [node for node in self.computed.values() if name in map(self.source, node.reads)]
        return self.scalar(name) and any(not self.scalar(node.name) for node in readers)

    def term(self, name: str) -> str:
        """A value where it is used."""
        name = self.source(name)
        if (
            name not in self.computed
            and (node := self.scope.program.by_name[name])
            and isinstance(node, Node)
            and node.op == "GroupSize"
        ):
            return self.expression(node)
        if name in self.rows:
            return f"rows.{identifier(name)}"
        if self.scalar(name) and (name not in self.computed or self.computed[name] in self.visible):
            return f"at.{identifier(name)}"
        if name in self.computed and self.computed[name] not in self.visible:
            return self.expression(self.computed[name])
        return identifier(name)

    def pack_of(self, name: str) -> str:
        """A value where a pack is needed."""
        return self.spread(name) if volume(self.shape).one and self.constant(name) else self.term(name)

    def spread(self, name: str) -> str:
        return f"spread<{CPP[self.type(name).dtype]}, N>({self.term(name)})"

    def constant(self, name: str) -> bool:
        """Whether a value is a number in the text, as it is made of sizes of the group alone."""
        name = self.source(name)
        node = self.scope.program.by_name[name]
        if not isinstance(node, Node) or (name not in self.computed and node.op != "GroupSize"):
            return False
        return node.op != "Dropout" and all(map(self.constant, node.reads))

    def expression(self, node: Node) -> str:
        match node.op:
            case "GroupSize":
                return literal(self.scope.bindings.ranks, node.type.dtype)
            case "Update":
                return self.operand(node.inputs[1], node.type.dtype)
            case "Cast":
                return f"cast<{CPP[node.type.dtype]}>({self.term(str(node.inputs[0]))})"
            case "Dropout":
                return self.dropout(node)
            case "Permute":
                return self.permute(node)
        if node.op not in FUNCTIONS:
            raise InputError(f"{node.name}: found {node.op} among pointwise operations, expected a kernel of its own")
        dtype = node.number_dtype({x: self.type(x).dtype for x in node.inputs if isinstance(x, str)})
        return f"op::{FUNCTIONS[node.op]}({', '.join(self.operand(x, dtype) for x in node.inputs)})"

    def operand(self, operand: Operand, dtype: Dtype) -> str:
        return self.term(operand) if isinstance(operand, str) else literal(operand, dtype)

    def dropout(self, node: Node) -> str:
        x, p, dtype = self.pack_of(str(node.inputs[0])), float(str(node.attribute("p"))), node.type.dtype
        key = f"{op_key(str(node.attribute('key'))):#x}u" + (
            " + at.place" if isinstance(node.type.layout, Local) else ""
        )
        mask = f"{{at.seed, {key}, at.step, {threshold(p):#x}u}}"
        survivors = literal(scale(p), "f64" if dtype == "f64" else "f32")
        if extended(node.type.shape, self.shape) == self.shape:
            return f"op::dropout({x}, {mask}, global, {survivors})"
        index = f"[&](int64_t i) {{ return {self.broadcast(node.type.shape)[0]}; }}"
        return f"op::dropout<{CPP[dtype]}, N>({x}, {mask}, global, {survivors}, {index})"

    def permute(self, node: Node) -> str:
        """Raises InputError where what is permuted is computed by the same kernel."""
        x, order = (self.source(str(name)) for name in node.inputs)
        if {x, order} & {*self.computed, self.value}:
            raise InputError(f"{node.name}: found rows that are computed by the same kernel, expected them in memory")
        extents, layout = self.scope.extents(self.type(x).shape), self.layout(x)
        slices = slice_type(layout, extents, self.scope.bindings.ranks)
        at = f"{slices}::local(at.place, i)" if isinstance(layout, Sliced) else "i"
        row = prod(extents[1:])
        return (
            f"permute<{CPP[node.type.dtype]}, N, {row}>(at.{self.pointer(x)}, at.{self.pointer(order)}, global, local,"
            f" [&](int64_t i) {{ return {at}; }})"
        )

    def load(self, name: str) -> str:
        """A value of another stage or of the caller."""
        shape, dtype, layout = self.type(name).shape, CPP[self.type(name).dtype], self.layout(name)
        pointer = f"at.{self.pointer(name)}"
        counted = name not in self.again and name not in self.reduced
        if self.scattered(name):
            return f"load_scattered<{dtype}, N>(*{pointer}, at.cursor, global)"
        if extended(shape, self.shape) == self.shape:
            return f"{'load_user' if counted else 'load_again'}<{dtype}, N>({pointer} + {self.index(name)})"
        index, period = self.broadcast(shape)
        if isinstance(layout, Sliced):
            slices = slice_type(layout, self.scope.extents(shape), self.scope.bindings.ranks)
            index = f"{slices}::local(at.place, {index})"
        elif index == f"i % {period}":
            return f"repeat<{dtype}, N, {period}, {period if counted else 0}>({pointer}, global, local)"
        first = period if counted else 0
        return f"gather<{dtype}, N, {first}>({pointer}, global, local, [&](int64_t i) {{ return {index}; }})"

    def pointer(self, name: str) -> str:
        return f"reduced_{identifier(name)}" if name in self.reduced else identifier(self.scope.storage(name)[1].name)

    def layout(self, name: str) -> Layout:
        """How the memory of a value is laid out."""
        return self.type(name).layout if name in self.reduced else self.scope.storage(name)[1].layout

    def store(self, name: str) -> str:
        if extended(self.type(name).shape, self.shape) != self.shape:
            raise InputError(f"{self.name}: found {name} stored among larger tensors, expected a kernel of its own")
        value = self.spread(name) if self.rows else self.pack_of(name)
        _, buffer = self.scope.storage(name)
        pointer, index = f"at.{identifier(buffer.name)}", "local" if isinstance(buffer.layout, Sliced) else "global"
        if self.scattered(name):
            return f"store_scattered(*{pointer}, at.cursor, global, {value})"
        return f"store_user({pointer} + {index}, {value})"

    def index(self, name: str) -> str:
        return "local" if isinstance(self.layout(name), Sliced) else "global"

    def broadcast(self, shape: Shape) -> tuple[str, int]:
        return index_of(shape, self.shape, self.scope.bindings, self.name)

    @cached_property
    def parts(self) -> tuple[EndTable, ...]:
        masked = [node.name for node in self.computed.values() if node.op == "Dropout"]
        found = [extent for name in (*self.streams, *masked) for extent in split(self.type(name).shape, self.shape)]
        return tuple(part_ends(self.scope.bindings, self.name, extent) for extent in dict.fromkeys(found))

    @cached_property
    def random(self) -> bool:
        return any(node.op == "Dropout" for node in self.members)

    @cached_property
    def place(self) -> bool:
        """Whether the rank's place in its group matters."""
        mine = any(node.op == "Dropout" and isinstance(node.type.layout, Local) for node in self.members)
        loads = [*map(self.load, self.streams), *map(self.permute, self.permuted)]
        return mine or any("at.place" in text for text in loads)
