"""Every rule of every runtime: a file that keeps it, a file that breaks it, and the place that is named."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.msccl.rules import FATAL, RULES, judge
from treadle.codegen.collective.msccl.runtimes import RUNTIMES, Name
from treadle.codegen.collective.msccl.subject import Subject
from treadle.planner.errors import InputError

GOOD = """<!-- two gpus swap -->
<algo name="swap" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0" outofplace="1" minBytes="64" maxBytes="4096">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="1"/>
    </tb>
    <tb id="1" send="-1" recv="-1" chan="0">
      <step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" depid="0" deps="1" hasdep="0"/>
      <step s="1" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="0" deps="1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""  # noqa: E501
LAST = 'type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="0" deps="1"'
RE = 'type="re" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>'


def rules(text: str, name: Name, effects: tuple[str, ...] = FATAL) -> dict[str, str]:
    """Rule -> what is said about it."""
    findings = judge(Subject(text, xml.parse(text, "x.xml")), name)
    return {finding.rule: str(finding) for finding in findings if finding.effect in effects}


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_good_file_is_taken_by_all(name: Name) -> None:
    assert rules(GOOD, name) == {}


def many_blocks(count: int) -> str:
    blocks = "".join(f'<tb id="{number}" send="-1" recv="-1" chan="0"></tb>' for number in range(2, count))
    return GOOD.replace("</tb>\n  </gpu>\n  <gpu", f"</tb>{blocks}\n  </gpu>\n  <gpu")


def many_steps(count: int, kind: str = "cpy") -> str:
    step = 'srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
    steps = "\n".join(f'<step s="{number}" type="{kind}" {step}' for number in range(2, count))
    return GOOD.replace('deps="1" hasdep="0"/>\n    </tb>', f'deps="1" hasdep="0"/>{steps}</tb>')


def without(*names: str) -> str:
    text = GOOD
    for name in names:
        at = text.index(f" {name}=")
        text = text[:at] + text[text.index('"', text.index('"', at) + 1) + 1 :]
    return text


RR, ALL = ("rccl", "executor"), ("rccl", "executor", "msccl")
CASES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "xml-declaration": ('<?xml version="1.0"?>\n' + GOOD, ALL, "line 1: found <?xml"),
    "plain-attributes": (GOOD.replace(' proto="LL"', '\n  proto="LL"'), ALL, "line 2: found <algo"),
    "plain-attributes 2": (GOOD.replace('proto="LL"', "proto='LL'"), ALL, "line 2: found <algo"),
    "plain-attributes 3": (GOOD.replace('id="1" send', 'id = "1" send', 1), ALL, "line 8: found <tb"),
    "nothing-between": (GOOD.replace("    <tb", "\t<tb", 1), ALL, "line 4: found a tab"),
    "nothing-between 2": (GOOD.replace("  <gpu", "  text <gpu", 1), ALL, "line 3: found 'text'"),
    "attribute-count": (
        GOOD.replace(' maxBytes="4096"', "".join(f' x{n}="1"' for n in range(8)) + ' maxBytes="4096"'),
        RR,
        "found maxBytes in place 18",
    ),
    "attribute-count 2": (GOOD.replace(' chan="0"', " " * 17 + 'chan="0"', 1), ALL, "line 4: found chan in place 20"),
    "token-length": (GOOD.replace("swap", "s" * 300, 2), ALL, "found 300 characters at name"),
    "missing-attribute": (without("minBytes"), RR, "line 2: <algo> has no minBytes"),
    "missing-attribute 2": (without("outofplace", "maxBytes"), RR, "<algo> has no outofplace; line 2: <algo> has no"),
    "missing-attribute 3": (without("name"), ("msccl",), "<algo> has no name"),
    "missing-attribute 4": (without("inplace"), ALL, "<algo> has no inplace"),
    "collective-name": (GOOD.replace("allgather", "custom"), RR, "found custom"),
    "byte-range": (GOOD.replace("4096", "63"), ("msccl",), "found 64 to 63"),
    "empty-range": (GOOD.replace("4096", "63"), RR, "found 64 to 63 bytes, nchunksperloop 2"),
    "empty-range 2": (GOOD.replace('"64"', '"0"').replace("4096", "0"), ("msccl",), "found 0 to 0 bytes"),
    "no-mode": (GOOD.replace('outofplace="1"', 'outofplace="0"'), RR, "found inplace 0, outofplace 0"),
    "channel-count": (GOOD.replace('nchannels="1"', 'nchannels="33"'), ("executor", "msccl"), "found nchannels 33"),
    "channel-count 2": (GOOD.replace('nchannels="1"', 'nchannels="129"'), ALL, "found nchannels 129"),
    "warp-multiple": (GOOD.replace('proto="LL"', 'proto="LL" nthreads="100"'), ("msccl",), "found nthreads 100"),
    "blocks-per-gpu": (many_blocks(65), ("rccl",), "line 3: gpu 0 has 65"),
    "blocks-per-gpu 2": (many_blocks(217), ("rccl", "msccl"), "gpu 0 has 217"),
    "steps-per-block": (many_steps(65), RR, "line 8: gpu 0 tb 1 has 65"),
    "steps-per-block 2": (many_steps(257), ALL, "gpu 0 tb 1 has 257"),
    "xml-nodes": (many_steps(4100), ALL, "gpu 0 comes to 4107"),
    "channel-number": (GOOD.replace('chan="0"', 'chan="129"', 1), ALL, "line 4: gpu 0 tb 0: found 129"),
    "channel-off-by-one": (GOOD.replace('chan="0"', 'chan="32"', 1), ("executor", "msccl"), "gpu 0 tb 0: found 32"),
    "peer-number": (GOOD.replace('send="1"', 'send="7"', 1), ALL, "gpu 0 tb 0: send 7"),
    "peer-itself": (GOOD.replace('send="1"', 'send="0"', 1), ALL, "line 4: gpu 0 tb 0"),
    "peerless-step": (GOOD.replace('send="1"', 'send="-1"', 1), ALL, "line 5: gpu 0 tb 0 step 0: s"),
    "step-type": (GOOD.replace(LAST, LAST.replace("cpy", "ra")), RR, "line 10: gpu 0 tb 1 step 1: ra"),
    "chunk-count": (GOOD.replace(LAST, LAST.replace('cnt="1"', 'cnt="72"')), ALL, "gpu 0 tb 1 step 1: 72"),
    "offset-behind": (
        GOOD.replace(LAST, LAST.replace('dstoff="0"', 'dstoff="2"')),
        ALL,
        "gpu 0 tb 1 step 1: dstoff 2 cnt 1 of 2 o chunks",
    ),
    "offset-overrun": (
        GOOD.replace(LAST, LAST.replace('cnt="1"', 'cnt="2"')),
        ALL,
        "gpu 0 tb 1 step 1: srcoff 0 cnt 2 of 1 i chunks",
    ),
    "nop-chain": (GOOD.replace(LAST, LAST.replace('depid="0" deps="1"', 'depid="-1" deps="-1"')), ALL, "step 1"),
    "fused-counts": (
        GOOD.replace(
            '      <step s="2" type="cpy"',
            f'      <step s="2" {RE.replace(chr(34) + "1" + chr(34) + " depid", chr(34) + "2" + chr(34) + " depid")}\n'
            f'      <step s="3" {RE}\n      <step s="4" type="cpy"',
        ),
        ALL,
        "gpu 1 tb 0 step 3: cnt 2, then 1",
    ),
    "awaited-block": (
        many_blocks(130).replace(
            'depid="0" deps="1" hasdep="0"/>\n    </tb>', 'depid="128" deps="0" hasdep="0"/></tb>'
        ),
        ALL,
        "gpu 0 tb 1 step 1: waits for tb 128",
    ),
    "silent-step": (
        GOOD.replace('deps="-1" hasdep="1"', 'deps="-1" hasdep="0"'),
        ALL,
        "gpu 0 tb 1 step 0: waits for tb 0 step 1",
    ),
    "buffer-sizes": (
        GOOD.replace('i_chunks="1"', 'i_chunks="3"', 1),
        ("msccl",),
        "gpu 0: i_chunks comes to 6, nchunksperloop is 2",
    ),
    "copy-element": (
        GOOD.replace('    <tb id="0" send="1"', '    <copy i_off="0" o_off="0"/>\n    <tb id="0" send="1"').replace(
            LAST, LAST.replace("cpy", "nop")
        ),
        ALL,
        "line 3: found 1, which the result needs",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_broken_rule_is_named_with_its_place(case: str) -> None:
    text, runtimes, place = CASES[case]
    rule = case.partition(" ")[0]
    for name in RUNTIMES:
        found = rules(text, name)
        if name in runtimes:
            assert rule in found, (name, found)
            assert place in found[rule]
        else:
            assert rule not in found, (name, found)


def test_compact_files_have_no_steps_for_a_runtime() -> None:
    compact = (
        '<algo name="swap" proto="LL" nchannels="1" ngpus="2" coll="allgather" inplace="1">'
        '<gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0"><tb id="0" send="1" recv="1" chan="0">'
        '<op step="0" type="s" buf="o" off="0"/><op step="1" type="r" buf="o" off="1"/></tb></gpu>'
        '<gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0"><tb id="0" send="0" recv="0" chan="0">'
        '<op step="0" type="s" buf="o" off="1"/><op step="1" type="r" buf="o" off="0"/></tb></gpu></algo>'
    )
    assert "found 4 <op>" in rules(compact, "msccl")["compact-dialect"]
    assert "nchunksperloop" in rules(compact, "msccl")["missing-attribute"]


def test_send_counts_as_out_of_place() -> None:
    text = GOOD.replace("allgather", "send").replace('inplace="0" outofplace="1"', 'inplace="1" outofplace="0"')
    assert "found send with outofplace 0" in rules(text, "rccl")["send-recv-out-of-place"]


def test_thirty_three_threadblocks_of_one_channel_are_too_many() -> None:
    blocks = "".join(f'<tb id="{n}" send="1" recv="-1" chan="0"></tb>' for n in range(2, 34))
    text = GOOD.replace("</tb>\n  </gpu>\n  <gpu", f"</tb>{blocks}\n  </gpu>\n  <gpu")
    for name in RUNTIMES:
        assert "gpu 0: 33 threadblocks send on channel 0" in rules(text, name)["blocks-per-channel"]


CONDITIONS = ("needs", "falls back", "ignores")


def test_conditions_of_a_file_that_is_taken() -> None:
    found = rules(GOOD, "rccl", CONDITIONS)
    expected = {"rank-count", "byte-count", "divisible-count", "in-place", "first-match", "enabled", "resident-blocks"}
    assert set(found) == expected
    assert "up to 2 threadblocks" in found["resident-blocks"]
    assert "runs from 64 bytes to 4096" in found["byte-count"]
    assert "nchunksperloop 2, times 2 ranks" in found["divisible-count"]
    assert "runs out of place only" in found["in-place"]
    assert "below 4096" in rules(GOOD, "msccl", CONDITIONS)["byte-count"]
    assert "134217728" in rules(without("maxBytes"), "msccl", CONDITIONS)["byte-count"]
    assert "NVLink or xGMI" in rules(GOOD.replace('"LL"', '"LL128"'), "rccl", CONDITIONS)["whole-lines"]


def test_what_has_no_effect_is_said() -> None:
    text = GOOD.replace('proto="LL"', 'proto="LL" redop="sum" maxcount="1"').replace("  <gpu", "  <hint/>\n  <gpu", 1)
    found = rules(text, "executor", ("ignores",))
    assert "found redop sum" in found["reduction-attribute"]
    assert "found maxcount" in found["unknown-attribute"]
    assert "line 3: found <hint> in <algo>" in found["unknown-element"]
    assert "found outofplace" in rules(GOOD, "msccl", ("ignores",))["unknown-attribute"]


def test_reducing_files_and_channels_have_conditions() -> None:
    text = GOOD.replace(LAST, LAST.replace("cpy", "re")).replace('nchannels="1"', 'nchannels="4"')
    found = rules(text.replace('maxBytes="4096"', 'maxBytes="0"'), "rccl", CONDITIONS)
    assert "avg" in found["reduction"]
    assert "NCCL_MIN_NCHANNELS" in found["channels-available"]
    assert "65536 slots" in found["slice-count"]


def test_every_rule_is_met_by_some_test() -> None:
    tested = {case.partition(" ")[0] for case in CASES}
    tested |= {"compact-dialect", "send-recv-out-of-place", "blocks-per-channel", "reduction-attribute"}
    tested |= {"unknown-attribute", "unknown-element", "rank-count", "byte-count", "divisible-count", "in-place"}
    tested |= {"reduction", "first-match", "enabled", "channels-available", "slice-count", "resident-blocks"}
    tested |= {"whole-lines"}
    assert {rule.id for rule in RULES} - tested == {"xml-children"}  # more than 1,024 of them: too large for a test


def test_real_files_are_taken_by_the_runtime_they_were_made_for(data_dir) -> None:
    for path in sorted((data_dir / "msccl").glob("*/*.xml")):
        text = path.read_text()
        subject = Subject(text, xml.parse(text, path.name))
        refused = {name: {f.rule for f in judge(subject, name) if f.effect in FATAL} for name in RUNTIMES}
        msccl = {"byte-range"} if path.name == "all-reduce-ring-simple.xml" else set()
        assert refused == {"rccl": set(), "executor": set(), "msccl": msccl}, path.name


VALUE = re.compile(r'="([^"]*)"')


@given(st.data())
def test_whatever_stands_in_a_file_the_answer_is_findings(data: st.DataObject) -> None:
    text = GOOD.replace("    <tb", '    <copy i_off="0" o_off="0"/>\n    <tb', 1)
    for _ in range(data.draw(st.integers(1, 4))):
        match = data.draw(st.sampled_from(list(VALUE.finditer(text))))
        value = data.draw(
            st.sampled_from(["-1", "0", "1", "2", "7", "130", "ra", "re", "rrc", "nop", "i", "s", "custom"])
        )
        text = f"{text[: match.start(1)]}{value}{text[match.end(1) :]}"
    with suppress(InputError):
        subject = Subject(text, xml.parse(text, "x.xml"))
        for name in RUNTIMES:
            assert all("\n" not in str(finding) for finding in judge(subject, name))
