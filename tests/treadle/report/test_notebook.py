"""Plans and traces draw themselves: small, escaped, with styles and ids that meet nothing else on the page."""

from __future__ import annotations

import re

import pytest
from lxml import etree
from msgspec.structs import replace

from tests.conftest import GOLDEN
from tests.planner.samples import DOCUMENTS, TRACE
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace

DRAWN = {kind: document for kind, document in DOCUMENTS.items() if isinstance(document, Plan | Trace)}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_plan_and_a_trace_draw_themselves(kind: str) -> None:
    html = DRAWN[kind]._repr_html_()
    assert html is not None
    assert html.startswith('<div class="treadle-document">')
    assert len(html) < 100_000
    assert "<script" not in html
    tree = etree.HTML(html)
    assert len(tree.xpath("//div[@class='treadle-cards']/div")) >= 3
    assert len(tree.xpath("//*[name()='svg']")) == 1
    ids = tree.xpath("//@id")
    assert len(ids) == len(set(ids))
    assert all(name.startswith("treadle-") for name in ids)
    selectors = re.findall(r"^([^\s{][^{}\n]*)\{", "".join(tree.xpath("//style/text()")), re.MULTILINE)
    assert selectors
    assert all(part.strip().startswith(".treadle-document") for each in selectors for part in each.split(","))
    assert html == DRAWN[kind]._repr_html_()


def test_other_documents_stay_text() -> None:
    others = [document for kind, document in DOCUMENTS.items() if kind not in DRAWN]
    assert others
    assert all(document._repr_html_() is None for document in others)


def test_names_are_text() -> None:
    html = replace(TRACE, name="<img src=x onerror=alert(1)>")._repr_html_()
    assert html is not None
    assert "&lt;img src=x" in html
    assert "<img" not in html


def test_the_curve_of_a_trace_names_its_own_calls() -> None:
    trace = store.load(GOLDEN / "inputs" / "step.json", Trace)
    html = trace._repr_html_()
    assert html is not None
    titles = etree.HTML(html).xpath("//*[name()='title']/text()")
    own = [op.id for op in trace.ops if op.intermediate_of is None]
    assert len(own) < len(trace.ops)
    assert [title.partition(":")[0] for title in titles] == own
