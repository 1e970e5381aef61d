"""Why a transformation does not apply: a code for programs, a witness for people."""

from __future__ import annotations

import re

from treadle.planner.errors import InputError


class InvalidTransform(InputError):
    """A transformation that would change what the program means, or that has nothing to apply to.

    `code` is one word for the condition that fails; `witness` names the operation, operand or path that fails it.
    """

    def __init__(self, transform: str, code: str, witness: str, message: str) -> None:
        super().__init__(f"{transform}: {message}")
        self.transform, self.code, self.witness = transform, code, witness


class TypeRefusal(InputError):
    """Operands whose layouts, shapes, types or groups do not go together; `row` of the table in docs/fusion.md."""

    def __init__(self, op: str, row: str, message: str) -> None:
        reference = f" (row {row} of the table in docs/fusion.md)" if re.fullmatch("[0-9]+[a-c]?", row) else ""
        super().__init__(f"{op}: {message}{reference}")
        self.op, self.row = op, row
