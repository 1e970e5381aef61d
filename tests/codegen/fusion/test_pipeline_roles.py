"""The hand-over between groups, chunk by chunk: RS in one group, computation and send, AG in the next, all at once."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.codegen.fusion.overlaps import CASES, Overlapped, pipeline
from tests.codegen.fusion.sessions import Session, fill, integers, session, wrong
from treadle.codegen.fusion.lower import Lowered
from treadle.planner.passes.fusion.evaluate import evaluate

RANKS, GROUPS = 2, 3
PROBE = """
static int made[RANKS];
static int begun[RANKS];
template <class Of, int *COUNTS>
struct Counted {
    static void signal(const Task &task, int rank, int64_t unit) {
        ++COUNTS[rank];
        Of::signal(task, rank, unit);
    }
};
template <class Of>
struct Begins {  // notes how many chunks the ranks of the group before had reduced when this one first goes on
    static bool wait(const Task &task, int rank, int64_t unit) {
        const bool good = Of::wait(task, rank, unit);
        if (begun[rank] < 0) begun[rank] = made[rank - 2] + made[(rank - 2) ^ 1];
        return good;
    }
};
}  // namespace treadle
extern "C" __attribute__((visibility("default"))) void treadle_clear() {
    for (int rank = 0; rank < treadle::RANKS; ++rank) treadle::made[rank] = 0, treadle::begun[rank] = -1;
}
extern "C" __attribute__((visibility("default"))) int treadle_made(int rank) { return treadle::made[rank]; }
extern "C" __attribute__((visibility("default"))) int treadle_begun(int rank) { return treadle::begun[rank]; }
namespace treadle {
"""


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    return Overlapped(pipeline, RANKS, GROUPS, options={"slot_bytes": 128}).lowered()


@pytest.fixture(scope="module")
def probed(lowered: Lowered) -> Iterator[Session]:
    text = lowered.text.replace("treadle::Done<rs_to_send>", "Counted<treadle::Done<rs_to_send>, made>")
    text = text.replace("treadle::Ready<send_to_ag>", "Begins<treadle::Ready<send_to_ag>>")
    at = text.index("struct rs_about")
    with session(lowered, changed={"schedule.cu": text[:at] + PROBE + text[at:]}) as live:
        yield live


def run(live: Session, order: int) -> None:
    live.native.library.treadle_clear()
    given = integers(live.lowered.program, live.lowered.bindings, order)
    values = evaluate(live.lowered.program, live.lowered.bindings, given, step=order)
    fill(live, values)
    assert live.run(order=order, step=order) == []
    assert wrong(live, values) == []


def entries(lowered: Lowered, kernel: str) -> list[tuple[int, ...]]:
    """(moves, receives from, sends to) of every threadblock, rank by rank."""
    found = re.search(kernel + r"_entries\[\] = \{(.*?)\n\};", lowered.text, re.S)
    assert found is not None
    rows = [tuple(map(int, row.split(","))) for row in re.findall(r"\{([^}]*)\}", found[1])]
    blocks = len(rows) // (RANKS * GROUPS)
    return [(sum(row[1] for row in each), *(max(row[at] for row in each) for at in (4, 7)))
            for each in (rows[rank * blocks : (rank + 1) * blocks] for rank in range(RANKS * GROUPS))]  # fmt: skip


def test_every_group_has_the_roles_of_its_place(lowered: Lowered) -> None:
    """The last group reduces and sends nothing, the first one receives nothing and gathers nothing."""
    assert [[kernel.name for kernel in launch] for launch in lowered.launches] == [["rs", "send", "ag"]]
    rs, send, ag = (entries(lowered, kernel) for kernel in ("rs", "send", "ag"))
    assert [moves > 0 for moves, _, _ in rs] == [True, True, True, True, False, False]
    assert [to for _, _, to in send] == [2, 3, 4, 5, -1, -1]
    assert [origin for _, origin, _ in send] == [-1, -1, 0, 1, 2, 3]
    assert [moves > 0 for moves, _, _ in ag] == [False, False, True, True, True, True]


def test_hand_over_gives_the_values_of_the_interpreter_in_every_order(probed: Session) -> None:
    for order in range(8):
        run(probed, order)


def test_chunks_are_gathered_while_others_are_still_being_reduced(probed: Session) -> None:
    """The three roles work at the same time: a chunk is sent in the next group before the last one is reduced."""
    shares = []
    for order in range(10):
        run(probed, order)
        total = probed.native.library.treadle_made(0) + probed.native.library.treadle_made(1)
        assert total > 4
        shares += [probed.native.library.treadle_begun(rank) / total for rank in (2, 3)]
    assert min(shares) <= 2 / 4
    assert sorted(shares)[len(shares) // 2] < 1


def test_a_pipeline_of_two_groups(lowered: Lowered) -> None:
    case = CASES["pipeline of two groups"].lowered()
    assert not case.fallbacks
    assert {kernel.stream for kernel in case.launches[0]} == {"communication"}
