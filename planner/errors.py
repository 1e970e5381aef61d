"""Every error a user can cause, and the exit code each one ends in.

TreadleError
├── CheckFailed          1  a check failed, or a committed plan is stale
├── InputError           2  a malformed file or wrong usage
├── InfeasibleError      3  proved: no plan exists under these limits
├── LimitError           4  no plan was found within the limits
└── MissingBackendError  5  a needed backend is not installed
"""

from __future__ import annotations

import re

_LONE = re.compile("[\ud800-\udfff]")
_LONG = re.compile(r"""(?<!\w)(['"])((?:(?!\1).){121,})\1(?!\w)|\S{401,}""", re.DOTALL)


def brief(message: str) -> str:
    """`message` with the middle of over-long quoted values and words left out: one line stays one line."""
    return _LONG.sub(lambda match: f"{match[0][:60]}...{match[0][-20:]}", message)


def spelled(text: str) -> str:
    """`text` as valid Unicode: bytes of a file name that are not UTF-8 become `\\xff`."""
    return _LONE.sub(lambda each: ascii(each[0])[1:-1].replace("udc", "x"), text)


class TreadleError(Exception):
    """Base of all errors that end in one line for the user instead of a traceback."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(brief(message))


class CheckFailed(TreadleError):
    """A plan or artefact did what it must not; `findings` names each spot."""

    exit_code = 1

    def __init__(self, message: str, findings: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(map(brief, findings))


class InputError(TreadleError):
    """Bad input. `where` is the file (or `<option>`), `path` the place inside it as `$.json.path`."""

    exit_code = 2

    def __init__(self, message: str, *, where: str = "", path: str = "") -> None:
        super().__init__(message)
        self.where = where
        self.path = path

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.path, str(self.args[0])) if part)


class InfeasibleError(TreadleError):
    """Proved infeasible; the message carries a reason a person can act on (the least feasible budget, say)."""

    exit_code = 3


class LimitError(TreadleError):
    """The limits ran out before any plan was found."""

    exit_code = 4


class MissingBackendError(TreadleError):
    """A solver, framework or tool is missing; the message carries the command that installs it."""

    exit_code = 5
