"""Program text to a program, without running it: a straight-line subset of Python that builds values.

Names are those of treadle.planner.passes.fusion.language and of variables assigned before. There are assignments,
calls, lists, numbers, text, and the operators of the language; anything else is refused with its line.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import BYTES
from treadle.planner.passes.fusion import language
from treadle.planner.passes.fusion.dims import Dim
from treadle.planner.passes.fusion.layouts import Group
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.values import Launch, Value

MODULES = ("treadle.fusion", "planner.fusion.language")
"""Modules of the language by name; the second is what versions before 0.2 called it."""
DEEPEST = 200
"""Levels of nesting in one expression."""
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Invert: operator.invert}


def parse(text: str, where: str) -> Program:
    """The program of a text; `where` is how errors call it.

    Raises InputError, or TypeRefusal for operands that do not go together, with `where` and the line.
    """
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        message = f"found what is no Python ({error.msg}), expected a program"
        raise InputError(message, where=f"{where}:{error.lineno or 1}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError("found a text that cannot be read, expected a program", where=where) from error
    return _Reader(where).program(module)


class _Reader:
    """Evaluates statements one by one; `scope` holds the variables assigned so far."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.words: dict[str, Any] = {word: getattr(language, word) for word in language.__all__}
        self.scope: dict[str, Any] = {}
        self.line = 1

    def program(self, module: ast.Module) -> Program:
        for statement in module.body:
            self.line = statement.lineno
            try:
                self.statement(statement)
            except InputError as error:
                error.where = error.where or f"{self.where}:{self.line}"
                raise
            except (TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError) as error:
                message = f"found what does not go together ({error}), expected operands of the language"
                raise self.error(message) from error
        programs = {id(value): value for value in self.scope.values() if isinstance(value, Program)}
        if len(programs) != 1:
            raise self.error(f"found {len(programs)} programs, expected one `program = Execute(...)`")
        return next(iter(programs.values()))

    def statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Expr(ast.Constant(str())):
                pass
            case ast.Expr(ast.Call() as call):
                self.value(call, 0)
            case ast.ImportFrom(module=module, names=[ast.alias(name="*")], level=0) if module in MODULES:
                pass
            case ast.Assign(targets=[ast.Name(name)], value=value):
                self.assign(name, self.value(value, 0))
            case ast.Assign(targets=[ast.Tuple(elts)], value=value):
                values = self.value(value, 0)
                if not isinstance(values, tuple) or len(values) != len(elts):
                    raise self.error(f"found {len(elts)} variables, expected one for each value")
                for target, of in zip(elts, values, strict=True):
                    if not isinstance(target, ast.Name):
                        raise self.error(f"found {_shown(target)}, expected a variable")
                    self.assign(target.id, of)
            case _:
                raise self.error(f"found {_shown(statement)}, expected `name = expression`")

    def assign(self, name: str, value: Any) -> None:
        if name in self.words:
            raise self.error(f"found the variable {name}, which is a word of the language, expected another name")
        self.scope[name] = value

    def value(self, tree: ast.expr, depth: int) -> Any:
        self.line = tree.lineno
        if depth > DEEPEST:
            raise self.error(f"found an expression nested deeper than {DEEPEST}, expected shorter ones")
        match tree:
            case ast.Constant(str() | int() | float() | None as constant):
                return constant
            case ast.Name(name):
                if name not in self.scope and name not in self.words:
                    dtypes = ", ".join(BYTES).replace("bool", "bool_")
                    expected = f"a variable assigned before, a word of the language or a dtype: {dtypes}"
                    raise self.error(f"found {name}, expected {expected}")
                return self.scope[name] if name in self.scope else self.words[name]
            case ast.List(elts):
                return [self.value(of, depth + 1) for of in elts]
            case ast.Tuple(elts):
                return tuple(self.value(of, depth + 1) for of in elts)
            case ast.BinOp(left, op, right) if type(op) in _BINARY:
                return self.operate(_BINARY[type(op)], tree, [left, right], depth)
            case ast.Compare(left, [op], [right]) if type(op) in _COMPARE:
                return self.operate(_COMPARE[type(op)], tree, [left, right], depth)
            case ast.UnaryOp(op, operand) if type(op) in _UNARY:
                return self.operate(_UNARY[type(op)], tree, [operand], depth)
            case ast.Call(ast.Name(name), args, keywords):
                return self.call(name, args, keywords, depth)
        raise self.error(f"found {_shown(tree)}, expected a value of the language")

    def operate(self, op: Callable[..., Any], tree: ast.expr, operands: list[ast.expr], depth: int) -> Any:
        values = [self.value(of, depth + 1) for of in operands]
        self.line = tree.lineno
        if not all(isinstance(of, Value | Dim | Group | int | float) for of in values):
            raise self.error(f"found {_shown(tree)}, expected tensors, numbers or dimensions")
        if op is operator.pow and not any(isinstance(of, Value) for of in values):
            raise self.error(f"found {_shown(tree)}, expected the number that it is")
        return op(*values)

    def call(self, name: str, args: list[ast.expr], keywords: list[ast.keyword], depth: int) -> Any:
        function = self.words.get(name)
        if function is None or not callable(function):
            raise self.error(f"found a call of {name}, expected an operation of the language")
        line = self.line
        positional = [self.value(of, depth + 1) for of in args]
        named: dict[str, Any] = {}
        for keyword in keywords:
            if keyword.arg is None:
                raise self.error("found **, expected named arguments")
            named[keyword.arg] = self.value(keyword.value, depth + 1)
        self.line = line
        if function is language.Execute:
            named["scope"] = {key: of for key, of in self.scope.items() if isinstance(of, Value | Launch)}
        try:
            return function(*positional, **named)
        except TypeError as error:
            message = str(error).replace("()", "")
            raise InputError(
                f"{name}: found arguments that do not fit ({message}), expected those of {name}"
            ) from error

    def error(self, message: str) -> InputError:
        return InputError(message, where=f"{self.where}:{self.line}")


def _shown(tree: ast.AST) -> str:
    try:
        text = " ".join(ast.unparse(tree).split())
    except RecursionError:
        return "an expression"
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"
