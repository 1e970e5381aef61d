"""The XML dialects: what is written is read back, what others wrote is read, every defect is named with its line."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.collective.algorithms import line_alltoall, random_algorithm, ring_allreduce
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.planner.errors import InputError

SMALL = """<!-- two gpus swap -->
<algo name="swap" nchannels="1" nchunksperloop="2" proto="LL" coll="allgather" inplace="1" redop="nop" ngpus="2">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <copy i_off="0" o_off="0"/>
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""


@given(seed=st.integers(0, 10**6), collective=st.sampled_from(["allgather", "reducescatter", "allreduce", "broadcast"]))
def test_what_is_written_is_read_back(seed: int, collective: str) -> None:
    for inplace in (False, True):
        program = lower(random_algorithm(collective, 4, 2, 2, seed), inplace=inplace)
        for dialect in ("rccl", "msccl"):
            assert xml.parse(xml.emit(program, dialect), "x.xml") == program


def test_every_real_file_is_read_and_written_back(data_dir) -> None:
    files = sorted((data_dir / "msccl").glob("*/*.xml"))
    assert len(files) == 13
    for path in files:
        program = xml.parse(path.read_text(), path.name)
        assert xml.parse(xml.emit(program), "again.xml") == program


def test_taccl_dialect() -> None:
    program = xml.parse(SMALL, "swap.xml")
    assert program.ranks[0].copies == ((0, 0),)
    assert (program.inplace, program.outofplace, program.min_bytes, program.max_bytes) == (True, False, 0, 0)
    assert program.ranks[1].threadblocks[0].steps[1].line == 13
    assert xml.parse(xml.emit(program), "swap.xml") == program


def test_reductions_are_those_of_the_runtimes() -> None:
    for word in ("nop", "sum", "prod", "max", "min"):
        xml.parse(SMALL.replace("nop", word), "swap.xml")
    with pytest.raises(InputError, match="line 2: /algo/@redop: found 'foo', expected one of nop, sum"):
        xml.parse(SMALL.replace("nop", "foo"), "swap.xml")


def test_reducescatter_has_two_spellings() -> None:
    program = lower(random_algorithm("reducescatter", 3, 1, 1, 1))
    assert 'coll="reducescatter"' in xml.emit(program)
    assert 'coll="reduce_scatter"' in xml.emit(program, "msccl")


def test_required_attributes_are_always_written() -> None:
    head = xml.emit(lower(line_alltoall())).splitlines()[0]
    for attribute in ("outofplace", "minBytes", "maxBytes", "inplace", "nchannels", "nchunksperloop", "ngpus", "proto"):
        assert f' {attribute}="' in head


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'type="r" srcbuf="o" srcoff="1"',
            'type="recv" srcbuf="o" srcoff="1"',
            "line 7: /algo/gpu[0]/tb[0]/step[1]/@type: found 'recv', expected one of s, r,",
        ),
        ('cnt="1" depid', 'cnt="one" depid', "step[0]/@cnt: found 'one', expected a whole number of at least 0"),
        ('cnt="1" depid', 'cnt="1.5" depid', "/@cnt: found '1.5', expected a whole number"),
        (' srcoff="0"', "", "line 6: /algo/gpu[0]/tb[0]/step[0]/@srcoff: found nothing, expected this required"),
        ('srcbuf="o"', 'srcbuf="x"', "/@srcbuf: found 'x', expected one of i, o, s"),
        (' s="1"', ' s="3"', "line 7: /algo/gpu[0]/tb[0]/step[1]/@s: found 3, expected 1"),
        ('depid="-1"', 'depid="0"', "/@deps: found -1 with depid 0, expected both or neither to be -1"),
        ('hasdep="0"', 'hasdep="2"', "/@hasdep: found 2, expected a whole number from 0 to 1"),
        ('gpu id="1"', 'gpu id="0"', "line 10: /algo/gpu[1]/@id: found 0 a second time"),
        ('gpu id="1"', 'gpu id="2"', "line 10: /algo/gpu[1]/@id: found 2, expected 0 to 1 without holes"),
        ('ngpus="2"', 'ngpus="3"', "line 2: /algo/@ngpus: found 3 for 2 <gpu> elements"),
        ('ngpus="2"', 'ngpus="0"', "line 2: /algo/@ngpus: found 0, expected a whole number from 1 to 1024"),
        (
            'coll="allgather"',
            'coll="allgatherv"',
            "line 2: /algo/@coll: found 'allgatherv', did you mean 'allgather'?",
        ),
        (
            'nchunksperloop="2"',
            'nchunksperloop="1000000000000"',
            "line 2: /algo/@nchunksperloop: found 1000000000000, expected a whole number from 1 to 1048576",
        ),
        (
            'i_chunks="1"',
            'i_chunks="1048577"',
            "line 3: /algo/gpu[0]/@i_chunks: found 1048577, expected a whole number",
        ),
        ('o_chunks="2"', 'o_chunks="1000000000000"', "line 3: /algo/gpu[0]/@o_chunks: found 1000000000000, expected"),
        ('s_chunks="0"', 's_chunks="1000000000000"', "line 3: /algo/gpu[0]/@s_chunks: found 1000000000000, expected"),
        (
            'cnt="1" depid',
            'cnt="1000000000000" depid',
            "line 6: gpu 0 tb 0 step 0/@cnt: found 1000000000000 chunks moved up to here, expected at most 16777216",
        ),
        ('proto="LL"', 'proto="LL3"', "/algo/@proto: found 'LL3'"),
        ('inplace="1" ', 'inplace="yes" ', "/algo/@inplace: found 'yes'"),
        ("<algo", "<prog", "found broken XML"),
        ("</algo>", "", "found broken XML"),
        ('<tb id="0" send="1"', '<tb id="0" send="-2"', "line 5: /algo/gpu[0]/tb[0]/@send: found -2"),
        ("<!-- two", '<!DOCTYPE a [<!ENTITY b "c">]><!-- two', "found a document type declaration"),
    ],
)
def test_defects_are_named(old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(InputError) as caught:
        xml.parse(SMALL.replace(old, new, 1), "bad.xml")
    assert str(caught.value).startswith("bad.xml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.data())
def test_damaged_text_raises_only_input_errors(data: st.DataObject) -> None:
    text = xml.emit(lower(ring_allreduce(3)))
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 40))
    filling = data.draw(st.text(max_size=10))
    with suppress(InputError):
        xml.parse(text[:start] + filling + text[start + length :], "fuzz.xml")


COMPACT = """<algo name="pass" proto="Simple" nchannels="1" ngpus="3" coll="broadcast" inplace="0">
  <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0">
    <tb id="0" send="1" recv="-1" chan="0"><op step="0" type="s" buf="i" off="0"/></tb>
  </gpu>
  <gpu id="1" i_chunks="0" o_chunks="1" s_chunks="0">
    <tb id="0" send="2" recv="0" chan="0"><op step="0" type="rcs" buf="o" off="0" hasdep="1"/></tb>
    <tb id="1" send="-1" recv="-1" chan="0"><op step="0" type="nop" depid="0" deps="0"/></tb>
  </gpu>
  <gpu id="2" i_chunks="0" o_chunks="1" s_chunks="0">
    <tb id="0" send="-1" recv="1" chan="0"><op step="0" type="r" buf="o" off="0"/></tb>
  </gpu>
</algo>
"""


def test_the_compact_dialect_of_msccl_tools() -> None:
    """`op` elements with one operand; nchunksperloop, cnt, dependences are left out where they are 1 or none."""
    program = xml.parse(COMPACT, "pass.xml")
    assert program.chunks_per_loop == 1
    fused, waiting = (block.steps[0] for block in program.ranks[1].threadblocks)
    assert (fused.src, fused.dst, fused.count, fused.awaited) == (("o", 0), ("o", 0), 1, True)
    assert (waiting.type, waiting.depends, waiting.count) == ("nop", (0, 0), 0)
    findings = check_program.check(program)
    assert findings == ["gpu 0: output chunk 0 ends as nothing, expected input chunk 0 of gpu 0"]
    with pytest.raises(InputError, match="found cpy in the compact dialect, which does not say where it reads"):
        xml.parse(COMPACT.replace('type="nop"', 'type="cpy" buf="o" off="0"'), "pass.xml")


def test_collectives_of_all_runtimes_are_read() -> None:
    names = ("alltoallv", "gather", "scatter", "send", "recv", "sendrecv", "custom", "reduce_scatter", "reducescatter")
    for name in names:
        program = xml.parse(SMALL.replace("allgather", name), "x.xml")
        assert program.collective == name.replace("_", "")


def test_what_only_some_runtime_needs_may_be_missing() -> None:
    bare = '<algo nchannels="1" nchunksperloop="2" coll="allgather" ngpus="2">'
    at = SMALL.index("<algo")
    program = xml.parse(SMALL[:at] + bare + SMALL[SMALL.index(">", at) + 1 :], "x.xml")
    assert (program.protocol, program.inplace, program.outofplace) == ("Simple", False, True)


def test_no_limit_is_a_large_number_for_msccl() -> None:
    text = xml.emit(lower(line_alltoall()), "msccl")
    assert f'maxBytes="{xml.NO_LIMIT}"' in text
    assert xml.parse(text, "x.xml").max_bytes == 0
    assert xml.emit(lower(line_alltoall()), "executor") == xml.emit(lower(line_alltoall()))
