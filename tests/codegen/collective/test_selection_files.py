"""A selection as artefacts: byte ranges in the units of each runtime, and NCCL's own algorithms by size."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from tests.planner.machine.machines import profile as shipped
from tests.planner.passes.collective.build import MESH, ring, switch
from treadle.codegen.collective import fitting, nccl_tuner
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.msccl.rules import FATAL, judge
from treadle.codegen.collective.msccl.runtimes import RUNTIMES
from treadle.codegen.collective.msccl.subject import Subject
from treadle.codegen.collective.selection_files import generate_selection
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.selection import Entry, NcclRange, Selection
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.collective.limits import Effort, Limits
from treadle.planner.passes.collective.planning import METHODS, references
from treadle.planner.passes.collective.rivals import rivals
from treadle.planner.passes.collective.sweep import Guide, parse_sizes, sweep
from treadle.planner.passes.collective.synthesis import Request


@pytest.fixture(autouse=True)
def templates_only(monkeypatch):
    """The solver's methods have tests of their own."""
    table = {name: METHODS[name] for name in ("binomial", "all-pairs", "ring")}
    monkeypatch.setattr("treadle.planner.passes.collective.planning.METHODS", table)


def entry(method: str, low: int, high: int, protocol: str = "LL") -> Entry:
    plan = InputRef(file=f"{method}.plan.json", digest="sha256:" + "0" * 64)
    return Entry(min_bytes=low, max_bytes=high, plan=plan, method=method, protocol=protocol, instances=1,
                 predicted_us=(1.5, 20.25), bound_us=(1, 20))  # fmt: skip


def selection(collective: str, *entries: Entry, rivals: tuple[NcclRange, ...] = ()) -> Selection:
    return Selection(version=1, collective=collective, ranks=16, nodes=2, tolerance=0.05, sizes=(1024,),
                     inputs={}, entries=entries, rivals=rivals)  # fmt: skip


THREE = (entry("binomial", 1024, 4095), entry("greedy", 4096, 65536), entry("ring", 65537, 2**30, "Simple"))


def rival(low: int, high: int, algorithm: str, protocol: str, plan_us: tuple[float, float] | None = None) -> NcclRange:
    return NcclRange(min_bytes=low, max_bytes=high, algorithm=algorithm, protocol=protocol, channels=(1, 24),
                 time_us=(15, 20.5), plan_us=plan_us)  # fmt: skip


RIVALS = (
    rival(0, 1023, "tree", "LL"), rival(1024, 4095, "tree", "LL", (1.5, 20.25)),
    rival(4096, 65536, "ring", "LL128", (15, 20)), rival(65537, 2**30, "nvls", "Simple", (15, 20)),
    rival(2**30 + 1, 2**40, "nvls", "Simple"),
)  # fmt: skip


def test_the_tuner_file(golden):
    golden("nccl_tuner/allreduce.conf", nccl_tuner.emit(selection("allreduce", *THREE, rivals=RIVALS)))


def rows(text: str) -> list[list[str]]:
    """What the example plugin reads: lines of at most 255 characters that are neither comments nor empty."""
    lines = text.splitlines()
    assert max(map(len, lines)) < 256
    return [line.split(",") for line in lines if line and not line.startswith("#")]


def test_one_row_for_neighbours_of_one_algorithm():
    found = rows(nccl_tuner.emit(selection("allreduce", *THREE, rivals=RIVALS)))
    assert [row[3:5] for row in found] == [["tree", "ll"], ["ring", "ll128"], ["nvls", "simple"]]
    assert all(len(row) == 8 for row in found)


@pytest.mark.parametrize("collective", ["alltoall", "allreduce"])
def test_without_times_of_nccl_there_are_comments_only(collective):
    text = nccl_tuner.emit(selection(collective, *THREE))
    assert rows(text) == []
    assert f"# No row: {nccl_tuner.why_none(selection(collective))}" in text
    assert "# 4096 to 65536 bytes: greedy" in text


@pytest.mark.parametrize("profile", ["ndv5", "ndv4", "dgx1", "mi300x", "cluster-10gbe", "ring4"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"])
def test_rows_reach_from_no_bytes_to_the_limit_without_holes(profile, collective):
    made = rivals(shipped(profile), collective, [3, 1024, 2**30 + 1], lambda size: None)
    found = rows(nccl_tuner.emit(selection(collective, *THREE, rivals=made)))
    spans = [(int(row[1]), int(row[2])) for row in found]
    assert spans[0][0] == 0
    assert spans[-1][1] == 2**64 - 1
    assert all(low <= high for low, high in spans)
    assert all(first == last + 1 for (_, last), (first, _) in pairwise(spans))


@pytest.mark.parametrize(
    ("collective", "bytes_"),
    [("allreduce", (1024, 4095)), ("allgather", (1024 * 16, 4096 * 16 - 1)), ("reducescatter", (1024, 4095)),
     ("alltoall", (1024, 4095)), ("scatter", (64, 255))],
)  # fmt: skip
def test_bytes_as_runtimes_count_them(collective, bytes_):
    assert nccl_tuner.call_bytes(selection(collective, *THREE), 1024, 4095) == bytes_


def swept(hardware, collective: str):
    return sweep(
        [Guide(0, Request(collective, hardware, MESH), references(hardware, MESH, None, {}))],
        parse_sizes("1K..4M"),
        Effort(Limits(routing=1, scheduling=1)),
    )


@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
def test_ranges_of_the_programs_follow_each_other(collective):
    plans, chosen = swept(switch(4), collective)
    files = generate_selection(chosen, "selection.json", plans).files
    factor = 4 if collective == "allgather" else 1
    for suffix in ("", "_inplace"):
        names = sorted(name for name in files if re.fullmatch(rf"\d\d-{collective}{suffix}\.xml", name))
        programs = [xml.parse(files[name], name) for name in names]
        assert len(programs) == len(chosen.entries)
        assert programs[0].min_bytes == 1024 * factor
        for one, other in pairwise(programs):
            assert other.min_bytes == one.max_bytes + 1
        assert programs[-1].max_bytes == 2**22 * factor + factor - 1
        assert [program.protocol for program in programs] == [entry.protocol for entry in chosen.entries]


def test_other_targets_get_a_folder_for_each_range():
    plans, chosen = swept(ring(4), "allreduce")
    files = generate_selection(chosen, "selection.json", plans, "cuda").files
    for number in range(len(chosen.entries)):
        assert f"{number:02d}/allreduce.cu" in files
    with pytest.raises(
        InputError, match="a selection has no target torch, which is for memory plans and fusion plans; expected"
    ):
        generate_selection(chosen, "selection.json", plans, "torch")


def test_mscclpp_plans_carry_their_sizes():
    plans, chosen = swept(switch(4), "allreduce")
    files = generate_selection(chosen, "selection.json", plans, "mscclpp-json").files
    for number, entry in enumerate(chosen.entries):
        text = files[f"{number:02d}/allreduce.json"]
        assert f'"min_message_size": {entry.min_bytes}' in text
        assert f'"max_message_size": {entry.max_bytes}' in text


def test_what_a_form_cannot_hold_is_left_out_and_said(monkeypatch):
    """A form with room for two instances, and none at all for the first range."""
    plans, chosen = swept(ring(4), "allreduce")
    real = fitting.texts_of

    def small(programs, target, decisions, where):
        first = next(iter(programs.values())).min_bytes == 1024
        if first or decisions.instances > 2:
            raise InputError("too large")
        return real(programs, target, decisions, where)

    monkeypatch.setattr(fitting, "texts_of", small)
    made = generate_selection(chosen, "selection.json", plans)
    assert made.facts["left_out"] == {"00": "too large"}
    assert not [name for name in made.files if name.startswith("00-")]
    many = [f"{number:02d}" for number, entry in enumerate(chosen.entries) if entry.instances > 2]
    assert many
    assert made.facts["fewer_instances"] == dict.fromkeys(many, 2)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_file_of_a_selection_is_taken_by_its_runtime(runtime):
    """The last byte of one range and the first of the next, as each runtime compares them."""
    plans, chosen = swept(switch(4), "allgather")
    made = generate_selection(chosen, "selection.json", plans, "msccl-xml", runtime)
    assert made.facts["runtime"] == runtime
    texts = {name: text for name, text in sorted(made.files.items()) if name.endswith("-allgather.xml")}
    assert len(texts) == len(chosen.entries)
    for name, text in texts.items():
        findings = judge(Subject(text, xml.parse(text, name)), runtime)
        assert not [finding for finding in findings if finding.effect in FATAL]
    spans = [[int(re.search(f'{end}="([0-9]+)"', text)[1]) for end in ("minBytes", "maxBytes")]
             for text in texts.values()]  # fmt: skip
    for (_, before), (after, _) in pairwise(spans):
        assert after == (before if runtime == "msccl" else before + 1)


def test_a_wrong_plan_is_not_generated():
    from msgspec.structs import replace

    plans, chosen = swept(ring(4), "allreduce")
    name, plan = next(iter(plans.items()))
    short = replace(plan, decisions=replace(plan.decisions, transfers=plan.decisions.transfers[1:]))
    with pytest.raises(CheckFailed, match="not generated"):
        generate_selection(chosen, "selection.json", {**plans, name: short})
    other, _ = swept(ring(5), "allreduce")
    with pytest.raises(InputError, match="expected allreduce of 4 ranks"):
        generate_selection(chosen, "selection.json", {**plans, name: next(iter(other.values()))})
