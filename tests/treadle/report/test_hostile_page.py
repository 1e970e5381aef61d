"""Hostile texts in every text of a plan that may be any: the page has the same elements, and shows them."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode

import pytest
from lxml import etree

from tests.codegen import hostile
from tests.planner.samples import DOCUMENTS, HARDWARE
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.report.page import Card, Page, Section, render
from treadle.report.sections import certificates, inputs_table, plan_cards, plan_section

HTML = "<script>x</script> \"' ]]> --> {{ x }} $\\frac{ $ \\"


def attacked(plan: Plan) -> Plan:
    """The plan with every text replaced that can be any."""
    raw = json.loads(store.dumps(plan))
    for place, _ in hostile.places(raw):
        if hostile.KEY in place or place[-1] in ("program", "schedule"):
            continue
        changed = hostile.replaced(raw, place, HTML)
        try:
            store.loads(json.dumps(changed), "plan.json", Plan)
        except InputError:
            continue
        raw = changed
    return store.loads(json.dumps(raw), "plan.json", Plan)


def page(name: str, plan: Plan) -> str:
    sections = (
        plan_section(name, plan, HARDWARE, {name: 100}),
        Section(name, name, (certificates({name: plan}), inputs_table({name: plan}))),
    )
    return render(Page(name, name, (Card(name, name, None, name), *plan_cards(plan)), sections, name))


@pytest.mark.parametrize("kind", [kind for kind, document in DOCUMENTS.items() if isinstance(document, Plan)])
def test_a_page_has_the_same_elements(kind: str):
    plan = DOCUMENTS[kind]
    hurt = attacked(plan)
    assert store.dumps(hurt).count("<script>") >= 5
    text = page(HTML, hurt)
    assert text.count("&lt;script&gt;") > 5
    assert hostile.alike(hostile.shape("x.html", text), hostile.shape("x.html", page("a plan", plan)))


def test_a_page_of_all_plans_is_well_formed_and_has_each_id_once():
    plans = {kind: document for kind, document in DOCUMENTS.items() if isinstance(document, Plan)}
    sections = tuple(plan_section(name, plan, HARDWARE) for name, plan in plans.items())
    text = render(Page("all", "plans", plan_cards(plans["memory plan"]), (*sections, *sections), "all.perfetto.json"))
    tree = etree.HTML(text)
    ids = tree.xpath("//@id")
    assert len(ids) == len(set(ids))
    links = [link[1:] for link in tree.xpath("//@href | //@*[local-name()='href']") if link.startswith("#")]
    assert set(links) <= set(ids)
    pictures = [etree.tostring(svg) for svg in tree.xpath("//figure//svg")]
    assert len(pictures) == len(set(pictures)) == sum(len(section.pictures) for section in sections)
    balanced = ("section", "figure", "details", "table", "div", "svg", "title", "rect", "a", "p")
    assert all(len(re.findall(rf"<{tag}[ >]", text)) == text.count(f"</{tag}>") for tag in balanced if tag != "rect")


def test_the_policy_of_a_page_allows_its_own_script_only():
    text = render(Page("t", "s"))
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == text.count("<script") == 1
    digest = b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in text
