"""What `treadle check` found as SARIF 2.1.0 (OASIS), which code hosts show next to the lines of a change."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from treadle.check.file import Report
from treadle.codegen.collective.msccl.rules import FATAL, RULES
from treadle.planner.documents import artefact
from treadle.planner.errors import InputError, spelled
from treadle.planner.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
OWN_RULES = {
    "stale": ("A committed plan or artefact is not up to date", "Plan or generate again, and commit the result."),
    "regression": (
        "A committed plan is worse on the inputs of today",
        "Plan again, compare with `treadle diff`, and commit the result; or allow more with --max-regression.",
    ),
    "unreadable": ("A file cannot be read", "The message names the place, what was found, and what is expected."),
    "rejected": ("A check failed", "The message names the place. `treadle check` executes programs symbolically."),
    "unverified": ("Artefacts could not be compared with their plan", "Put the plan and its trace next to them."),
}
"""What treadle checks itself: a short description and help. Rules of MSCCL runtimes come from their table."""
LINE = re.compile(r"\bline (\d+)")


def sarif(checked: Sequence[tuple[str, Report | InputError]]) -> str:
    """The document for the files of one command line, by name with what was found, as JSON text."""
    results = [result for path, report in checked for result in _results(path, report)]
    used = sorted({str(result["ruleId"]) for result in results})
    driver = {"name": "treadle", "semanticVersion": __version__, "rules": [_rule(name) for name in used]}
    seen: Counter[str] = Counter()
    for result in results:
        result["ruleIndex"] = used.index(result["ruleId"])
        key = result["partialFingerprints"]["treadle/v1"]
        seen[key] += 1
        result["partialFingerprints"] = {"treadle/v1": f"{key}:{seen[key]}"}  # the same finding at several places
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, sort_keys=True) + "\n"


def _results(path: str, report: Report | InputError) -> Iterator[dict[str, Any]]:
    if isinstance(report, InputError):
        yield _result("unreadable", "error", str(report), path, 0)
        return
    judged = set()
    for name, found in report.judgements.items():
        for each in found:
            level = "error" if each.effect in FATAL else "warning" if each.effect == "falls back" else "note"
            judged.add(f"{name} {each.effect} it: {each}")
            for spot in each.spots:
                message = f"{name}, {each.effect}: {each.sentence} ({spot.found})"
                yield _result(f"msccl/{each.rule}", level, message, path, spot.line)
    for finding in report.findings:
        if finding not in judged:
            place, text = _member(path, finding)
            kind = text.partition(":")[0]
            line = LINE.search(text)
            yield _result(
                kind if kind in OWN_RULES else "rejected", "error", text, place, int(line[1]) if line is not None else 0
            )
    if report.unverified and not report.findings:
        yield _result("unverified", "warning", report.unverified, _member(path, "")[0], 0)


def _member(path: str, finding: str) -> tuple[str, str]:
    """The file that a finding on a folder names first, else the folder's manifest; and the rest of the finding."""
    if not Path(path).is_dir():
        return path, finding
    name, _, rest = finding.partition(": ")
    if rest and "/" not in name and (Path(path) / name).is_file():
        return str(Path(path) / name), rest
    return str(Path(path) / artefact.FILE_NAME), finding


def _result(rule: str, level: str, message: str, path: str, line: int) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": _uri(path)}
    location["region"] = {"startLine": max(line, 1), "startColumn": _column(path, line)}
    message = spelled(message)
    key = hashlib.sha256("\0".join((rule, _uri(path)["uri"], LINE.sub("line", message))).encode()).hexdigest()
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": message},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"treadle/v1": key[:32]},
    }


def _uri(path: str) -> dict[str, str]:
    """Relative to the working directory, which is the root of the sources; files elsewhere by their whole path."""
    full, here = Path(path).resolve(), Path.cwd()
    if full.is_relative_to(here):
        return {"uri": quote(os.fsencode(full.relative_to(here))), "uriBaseId": "%SRCROOT%"}
    return {"uri": full.as_uri()}


def _column(path: str, line: int) -> int:
    """The first column of a line that is not blank, from 1."""
    try:
        text = Path(path).read_text().splitlines()[max(line, 1) - 1] if Path(path).is_file() else ""
    except (OSError, UnicodeDecodeError, IndexError):
        return 1
    return len(text) - len(text.lstrip()) + 1


def _rule(name: str) -> dict[str, Any]:
    if name in OWN_RULES:
        short, help_text = OWN_RULES[name]
    else:
        table = [rule for rule in RULES if f"msccl/{rule.id}" == name]
        short = f"MSCCL XML: {table[0].effect}"
        lines = [f"{', '.join(rule.runtimes)}: {rule.sentence} ({rule.source})" for rule in table]
        help_text = "\n".join(dict.fromkeys(lines))
    words = {"fullDescription": {"text": help_text}, "help": {"text": help_text}}
    return {"id": name, "shortDescription": {"text": short}, **words}
