"""Long tables of numbers in a file of their own, so that the code stays readable."""

from __future__ import annotations

import re
import textwrap

FILE_NAME = "schedule_tables.h"
LONGEST = 100
_TABLE = re.compile(r"^(\s*TREADLE_TABLE [^=]+ = )\{(.*)\};$", re.MULTILINE)


def apart(text: str) -> tuple[str, str]:
    """The file of a schedule with its long tables by name, and the header that defines them; empty without any."""
    tables: list[str] = []

    def named(found: re.Match[str]) -> str:
        if len(found[2]) <= LONGEST:
            return found[0]
        tables.append(found[2])
        return f"{found[1]}TABLE_{len(tables)};  // {found[2].count(',') + 1} numbers"

    short = _TABLE.sub(named, text)
    if not tables:
        return text, ""
    lines = ["// Tables of schedule.cu.", "#pragma once"]
    for number, table in enumerate(tables, 1):
        rows = textwrap.wrap(table, 110)
        lines += ["", f"#define TABLE_{number} {{ \\", *(f"    {row} \\" for row in rows), "}"]
    return short.replace('#include "', f'#include "{FILE_NAME}"\n#include "', 1), "\n".join(lines) + "\n"
