"""What the pages quote: commands and their output, files to write, pictures.

A page's commands run in their order in an empty folder. `python -m tests.quotes [PAGE...]`
(`make docs`) writes into the pages what the commands print, and `tests/test_quotes.py` compares. On a page

- a block ```` ```console ```` holds commands (`$ `) and their output, in which a line `...` stands for any lines;
- "Write this as `NAME`:" comes before a block that is a file;
- `<!-- not run: REASON -->` comes before a block whose commands do not run here;
- a picture that a command writes is the page's picture of that name;
- `nvidia-smi` prints the table that the tutorial shows.

Numbers are compared to the last digit, except where a command measures (MEASURING): there only bytes are compared, and
of jobs, scripts and indexes, whose plans come from measured times, no number (PLANNING).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.caches import cache_with_kernels

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial.md"

MEASURING = re.compile(r"treadle run|plan job|python |--verify|--measure|index\.plan|\bbooks\b")
"""Commands whose times, rates and rounding differ from run to run and from machine to machine."""

PLANNING = re.compile(r"plan job|^python |index\.plan|\bbooks\b")
"""Commands whose plans come from times that they measure, so that bytes differ too."""

UNSTEADY = re.compile(r"^(?:\[W\d{4} .*|.*\bbest .* \d+ s|measuring \d+/\d+ .*)\n", re.MULTILINE)
"""Warnings of PyTorch's allocator, and lines of progress that a log gets every 30 s."""

ANY_NUMBER = re.compile(r"(?<![\w.])[\d,]*\d(?:\.\d+)?(?:e[+-]\d+)?(?![\w.,]*\d)")
NUMBER = re.compile(ANY_NUMBER.pattern + r"(?! ?[KMGT]?i?B\b)")
SIZE = re.compile(ANY_NUMBER.pattern + r"(?: ?[KMGT]?i?B\b)?")
PLACE = re.compile(r"#(?:st|nd|rd|th)(?= predicted)|, # times as fast as the #st")
"""Which of the predicted ones was measured to be the fastest, once its numbers are gone."""

FAILURE = re.compile(r"^(?:\w*Error|error): |: rejected|treadle\.error/", re.MULTILINE)
"""What a page shows of a command that ends with another code than 0."""

EVENT = re.compile(
    r"Write\s+(?:this|it)\s+as\s+`(?P<name>[\w./-]+)`:\n\n```\w*\n(?P<file>.*?)```"
    r"|(?P<skip><!-- not run: [^>]+ -->\n\n)?```console\n(?P<session>.*?)```",
    re.DOTALL,
)
COMMAND = re.compile(r"^\$ (.*(?:\\\n.*)*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
PICTURE = re.compile(r"!\[[^\]]*\]\(([\w./-]+)\)")


@dataclass(frozen=True)
class Quote:
    """A command, the output that its page shows, what it printed, and whether it ended well."""

    command: str
    shown: str
    printed: str
    returncode: int

    @property
    def accurate(self) -> bool:
        return self.ends_as_shown and bool(re.fullmatch(self._pattern(), self._compared(self.printed)))

    @property
    def ends_as_shown(self) -> bool:
        return (self.returncode != 0) == bool(FAILURE.search(self.shown))

    def _compared(self, text: str) -> str:
        if MEASURING.search(self.command):
            number = SIZE if PLANNING.search(self.command) else NUMBER
            text = PLACE.sub("", re.sub(r"[ -]{2,}", " ", number.sub("#", text)))
        return text

    def _pattern(self) -> str:
        lines = self._compared(self.shown).splitlines(keepends=True)
        return "".join(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) for line in lines)

    def updated(self) -> str:
        """The output for the page: as printed, cut where the page cuts it."""
        if self.accurate:
            return self.shown
        lines, new = self.shown.splitlines(keepends=True), self.printed.splitlines(keepends=True)
        gaps = [number for number, line in enumerate(lines) if line.strip() == "..."]
        if not gaps:
            return self.printed
        behind = len(lines) - gaps[-1] - 1
        return "".join([*new[: gaps[0]], lines[gaps[0]], *new[len(new) - behind :]])


def _environment(folder: Path) -> dict[str, str]:
    """With an `nvidia-smi`, and of this user's caches only that of compiled kernels, which their text names."""
    tools = folder / ".tools"
    tools.mkdir()
    topology = next(event["file"] for event in EVENT.finditer(TUTORIAL.read_text()) if event["name"] == "topo.txt")
    (tools / "nvidia-smi").write_text(f"#!/bin/sh\ncat << 'END'\n{topology}END\n")
    (tools / "nvidia-smi").chmod(0o755)
    cache = cache_with_kernels(folder / ".cache")
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": "100", "XDG_CACHE_HOME": str(cache)}


def ran(page: str, folder: Path, progress: bool = False) -> list[Quote]:
    """Run the commands of a page's text in the empty `folder`, after writing its files in their turn."""
    environment = _environment(folder)
    quotes = []
    for event in EVENT.finditer(page):
        if event["name"]:
            (folder / event["name"]).parent.mkdir(parents=True, exist_ok=True)
            (folder / event["name"]).write_text(event["file"])
        for command, shown in COMMAND.findall(event["session"] or "") if not event["skip"] else ():
            if progress:
                print(f"$ {command}", flush=True)
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            quotes.append(Quote(command, shown, UNSTEADY.sub("", done.stdout), done.returncode))
    return quotes


def pictures(page: Path, folder: Path) -> list[tuple[Path, Path]]:
    """Pictures of the page that its commands have written: the page's file and the new one."""
    names = PICTURE.findall(page.read_text())
    return [(page.parent / name, folder / Path(name).name) for name in names if (folder / Path(name).name).is_file()]


def commands(page: str) -> list[str]:
    """The commands of a page's text that run."""
    return [
        command
        for event in EVENT.finditer(page)
        if event["session"] and not event["skip"]
        for command, _ in COMMAND.findall(event["session"])
    ]


def rewrite(page: Path) -> list[Quote]:
    """Run the page's commands and write what they print, and their pictures; quotes whose command ended differently."""
    text = page.read_text()
    with tempfile.TemporaryDirectory() as name:
        quotes = ran(text, Path(name), progress=True)
        for quote in quotes:
            old, new = f"$ {quote.command}\n{quote.shown}", f"$ {quote.command}\n{quote.updated()}"
            text = text.replace(old, new, 1)
        page.write_text(text)
        for old_picture, new_picture in pictures(page, Path(name)):
            shutil.copyfile(new_picture, old_picture)
    return [quote for quote in quotes if not quote.ends_as_shown]


def main(names: list[str]) -> int:
    chosen = [page for page in PAGES if not names or page.name in names or page.stem in names]
    different = 0
    for page in chosen:
        if commands(page.read_text()):
            print(f"# {page.relative_to(ROOT)}", flush=True)
            for quote in rewrite(page):
                different += 1
                print(f"{page.name}: {quote.command} ended with {quote.returncode}:\n{quote.printed}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
