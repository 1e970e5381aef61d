"""The page in a real browser: no horizontal scrolling at 390 px, names and values where one points, light and dark."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.planner.samples import DOCUMENTS, HARDWARE
from treadle.planner.documents.plan import Plan
from treadle.report.page import Page, render
from treadle.report.sections import certificate_sections, glance, plan_cards, plan_section

pytestmark = pytest.mark.slow

PLANS = {kind: plan for kind, plan in DOCUMENTS.items() if isinstance(plan, Plan)}

MEASURE = """<body style="margin:0"><iframe id="page" width="390" height="900" frameborder="0"></iframe>
<script>
document.getElementById("page").onload = (event) => {
  const inner = event.target.contentDocument, view = event.target.contentWindow;
  const root = inner.documentElement, tip = inner.getElementById("tip");
  const found = {scrolls: root.scrollWidth > root.clientWidth, charts: [], tips: []};
  for (const details of inner.querySelectorAll("details")) details.open = true;
  found.scrolls_open = root.scrollWidth > root.clientWidth;
  for (const chart of inner.querySelectorAll(".chart")) {
    found.charts.push(chart.scrollWidth > chart.clientWidth);
    const mark = chart.querySelector("[data-tip]"), box = mark.getBoundingClientRect();
    mark.dispatchEvent(new view.PointerEvent("pointermove", {bubbles: true, clientX: box.left, clientY: box.top}));
    const where = tip.getBoundingClientRect();
    found.tips.push([tip.hidden, tip.textContent, where.left >= 0 && where.right <= root.clientWidth]);
    root.dispatchEvent(new view.PointerEvent("pointermove", {bubbles: true}));
    found.tips.push([tip.hidden, "", true]);
  }
  found.paper = view.getComputedStyle(inner.body).backgroundColor;
  document.body.dataset.found = JSON.stringify(found);
};
document.getElementById("page").src = "page.html";
</script>"""


@pytest.fixture
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and not os.environ.get("CI"):
        pytest.skip("no Chromium on this machine")
    assert found is not None, ".ci/run installs Chromium, and it is not there"
    return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of the folder, in which pages of one origin may look at each other."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def measured(browser: str, folder: Path, address: str, scheme: int, measure: str = MEASURE) -> dict[str, Any]:
    (folder / "measure.html").write_text(measure)
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        f"--user-data-dir={folder / 'profile'}",
        f"--blink-settings=preferredColorScheme={scheme}",
        "--virtual-time-budget=10000",
        "--dump-dom",
        f"{address}/measure.html",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'data-found="([^"]*)"', done.stdout)
    assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
    result: dict[str, Any] = json.loads(unescape(found[1]))
    return result


@pytest.mark.parametrize(("scheme", "paper"), [(1, "rgb(255, 255, 255)"), (0, "rgb(13, 17, 23)")])
def test_page_fits_a_phone_and_names_what_one_points_at(
    browser: str, served: str, tmp_path: Path, scheme: int, paper: str
) -> None:
    sections = (
        *glance(PLANS),
        *(plan_section(name, plan, HARDWARE) for name, plan in PLANS.items()),
        *certificate_sections(PLANS, {}, "Checked."),
    )
    cards = plan_cards(PLANS["memory plan"])
    (tmp_path / "page.html").write_text(render(Page("A page", "of all plans", cards, sections, "page.perfetto.json")))
    found = measured(browser, tmp_path, served, scheme)
    assert found["paper"] == paper
    assert not found["scrolls"]
    assert not found["scrolls_open"]
    assert all(found["charts"]), "charts keep their size and scroll"
    shown, hidden = found["tips"][::2], found["tips"][1::2]
    assert len(shown) >= len(PLANS)
    assert all(not is_hidden and text and inside for is_hidden, text, inside in shown)
    assert all(is_hidden for is_hidden, _, _ in hidden)


@pytest.mark.parametrize(
    ("theme", "paper"),
    [
        ("", "rgb(255, 255, 255)"),
        ('data-jp-theme-light="true"', "rgb(255, 255, 255)"),
        ('data-jp-theme-light="false"', "rgb(13, 17, 23)"),
        ('class="vscode-dark"', "rgb(13, 17, 23)"),
    ],
)
def test_a_notebook_has_the_colours_of_its_theme(
    browser: str, served: str, tmp_path: Path, theme: str, paper: str
) -> None:
    cell = f"<body {theme}><div>{PLANS['memory plan']._repr_html_()}</div>"
    script = """<script>
    const drawn = document.querySelector(".treadle-document");
    document.body.dataset.found = JSON.stringify({paper: getComputedStyle(drawn).backgroundColor});
    </script>"""
    assert measured(browser, tmp_path, served, 0, cell + script) == {"paper": paper}
