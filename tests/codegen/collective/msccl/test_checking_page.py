"""docs/checking-xml.md shows the limits and rules that the code applies."""

from __future__ import annotations

import re
from pathlib import Path

from treadle.codegen.collective.msccl.rules import RULES, Rule
from treadle.codegen.collective.msccl.runtimes import RUNTIMES

PAGE = Path(__file__).parents[4] / "docs" / "checking-xml.md"

LIMITS = {
    "steps": "steps of a threadblock",
    "blocks": "threadblocks of a gpu",
    "blocks_per_channel": "of them that send, or receive, on one channel",
    "channels": "channels",
    "count": "`cnt` of a step",
    "fused_reductions": "`re` steps joined",
    "awaited_block": "highest threadblock that can be awaited",
    "nodes": "elements kept, those of the other gpus' insides not counted",
    "children": "children of an element",
    "attributes": "attributes of an element",
    "token": "characters of a name or value",
    "slices": "slices of a chunk",
}


def limits_table() -> str:
    lines = ["| limit | " + " | ".join(runtime.title for runtime in RUNTIMES.values()) + " |"]
    lines.append("|---|" + "---:|" * len(RUNTIMES))
    for field, words in LIMITS.items():
        values = (f"{getattr(runtime, field):,}" for runtime in RUNTIMES.values())
        lines.append(f"| {words} | {' | '.join(values)} |")
    for field, words in (("collectives", "`coll`"), ("required", "attributes that `<algo>` must have")):
        values = (", ".join(getattr(runtime, field)) for runtime in RUNTIMES.values())
        lines.append(f"| {words} | {' | '.join(values)} |")
    return "\n".join(lines)


def sentence(rule: Rule) -> str:
    """With the numbers of the runtimes it is about: `64 / 256` where they differ."""

    def number(match: re.Match[str]) -> str:
        if match[1] == "listed":
            return "those of the table above"
        values = dict.fromkeys(str(getattr(RUNTIMES[name], match[1])) for name in rule.runtimes)
        return " / ".join(values)

    return re.sub(r"\{([a-z_]+)\}", number, rule.sentence).replace("<", "&lt;")


def rules_table() -> str:
    lines = ["| rule | effect | runtimes | what it is about | decided in |", "|---|---|---|---|---|"]
    for rule in RULES:
        names = "all" if len(rule.runtimes) == len(RUNTIMES) else ", ".join(rule.runtimes)
        lines.append(f"| `{rule.id}` | {rule.effect} | {names} | {sentence(rule)} | {rule.source} |")
    return "\n".join(lines)


def test_the_page_has_every_limit_and_every_rule() -> None:
    page = PAGE.read_text()
    assert limits_table() in page
    assert rules_table() in page
