"""Python text of nested calls and literals, laid out within a line width."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.codegen.templates import quote
from treadle.planner.documents.arguments import WORDS, word_expected
from treadle.planner.documents.trace import Trace
from treadle.planner.documents.values import call_renamed
from treadle.planner.errors import InputError

WIDTH = 120


@dataclass(frozen=True)
class PythonTree:
    """A nested expression `head(item, ...)tail`, or a list when `head` is a bracket."""

    head: str
    items: tuple[str | PythonTree, ...]
    tail: str = ")"

    def __str__(self) -> str:
        return self.head + ", ".join(map(str, self.items)) + self.tail


def python_names(texts: Iterable[str], taken: set[str], endings: Sequence[str] = ("",)) -> dict[str, str]:
    """A Python name for each of `texts`, by text; neither it nor it with one of `endings` is `taken`, which gets them,
    or a builtin."""
    names = {}
    taken |= {*dir(builtins)}
    for text in texts:
        name = re.sub(r"\W", "_", text, flags=re.ASCII).lstrip("_")
        name = name if name.isidentifier() and not keyword.iskeyword(name) else f"x_{name}"
        while any(f"{name}{ending}" in taken for ending in endings):
            name += "_"
        taken |= {f"{name}{ending}" for ending in endings}
        names[text] = name
    return names


def layout(start: str, value: str | PythonTree, indent: int) -> Iterator[str]:
    """Lines of `start` followed by `value`, one item per line where they would be too wide."""
    flat = " " * indent + start + str(value)
    if len(flat) <= WIDTH or isinstance(value, str) or not value.items:
        yield flat
        return
    yield " " * indent + start + value.head
    for item in value.items:
        *lines, last = layout("", item, indent + 4)
        yield from lines
        yield last + ","
    yield " " * indent + value.tail


def literal(value: Any) -> str | PythonTree:
    """Lists and tuples as lists; the lists in a dict stay on one line."""
    if isinstance(value, list | tuple):
        return PythonTree("[", tuple(literal(item) for item in value), "]")
    if isinstance(value, dict):
        return PythonTree("{", tuple(f"{quote(key)}: {literal(item)}" for key, item in value.items()), "}")
    return quote(value) if isinstance(value, str) else repr(value)


def constants(**values: Any) -> Iterator[str]:
    """Assignments of these values."""
    for name, value in values.items():
        yield from layout(f"{name} = ", literal(value), 0)


def returning(trace: Trace) -> Iterator[str]:
    """The statement that returns what the captured step does, from a list `outputs`."""
    several: list[Any] = [{"tensor": output} for output in trace.outputs]
    default = several[0] if len(several) == 1 else {"tuple": several}
    tree = default if trace.returned is None else trace.returned
    yield from layout("return ", container(tree, {x: f"outputs[{i}]" for i, x in enumerate(trace.outputs)}), 4)


def container(tree: Any, names: dict[str, str]) -> str | PythonTree:
    """The Python expression of a tree as `Trace.returned` holds it."""
    if isinstance(tree, list | tuple):
        return PythonTree("[", tuple(container(item, names) for item in tree), "]")
    if not isinstance(tree, dict):
        return quote(tree) if isinstance(tree, str) else repr(tree)
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return names[value]
    if kind == "float":
        return word(kind, value)
    if kind == "tuple":
        head, tail = ("tuple([", "])") if len(value) == 1 else ("(", ")")
        return PythonTree(head, tuple(container(item, names) for item in value), tail)
    if kind == "object":
        name, fields = value
        return PythonTree("objects.made(", (quote(name), container({"dict": fields}, names)))
    items = (labelled(f"{container(key, names)}: ", container(item, names)) for key, item in value)
    return PythonTree("{", tuple(items), "}")


def calling(trace: Trace) -> Iterator[str]:
    """The constant `CALLED`, where the step is not called with its inputs in their order: a `Called` over numbers."""
    if trace.called is not None:
        called = call_renamed(trace.called, {tensor: number for number, tensor in enumerate(trace.inputs)})
        fields = {"args": called.args, "kwargs": called.kwargs, "parameters": called.parameters}
        yield from layout("CALLED = ", nested(fields), 0)


def nested(value: Any) -> str | PythonTree:
    """As `literal`, with lines of their own for what is in a dict."""
    if isinstance(value, list | tuple):
        return PythonTree("[", tuple(nested(item) for item in value), "]")
    if isinstance(value, dict):
        return PythonTree("{", tuple(labelled(f"{quote(key)}: ", nested(item)) for key, item in value.items()), "}")
    return quote(value) if isinstance(value, str) else repr(value)


def word(kind: str, value: str) -> str:
    """The Python expression of a leaf of an argument tree that is no tensor, such as `{"dtype": "float32"}`. Raises
    InputError for one that stands for nothing."""
    if kind == "device":
        return "device"
    if value not in WORDS.get(kind, ()):
        raise InputError(f"found {kind} {value!r}, expected {word_expected(kind) if kind in WORDS else 'an argument'}")
    return f"float({quote(value)})" if kind == "float" else f"torch.{value}"


def labelled(label: str, value: str | PythonTree) -> str | PythonTree:
    """`label` right before `value`."""
    return label + value if isinstance(value, str) else PythonTree(label + value.head, value.items, value.tail)
