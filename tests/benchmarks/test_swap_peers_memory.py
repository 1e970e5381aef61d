"""Bytes and buddy blocks: allocations never overlap, and depend on the nodes that freed their memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.swap.peers.memory import Buddy, Bytes, Room

STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=40)


@given(total=st.integers(0, 40), steps=STEPS)
def test_buddy_blocks_never_overlap_and_wait_for_their_past(total, steps):
    buddy = Buddy(total)
    held: list[tuple[Room, int]] = []
    gave: dict[int, int] = {}
    for node, (taking, count) in enumerate(steps):
        if taking:
            room = buddy.take(count)
            if room is None:
                continue
            assert room.address % (1 << (count - 1).bit_length()) == 0 or total & (total - 1)
            assert room.address + (1 << (count - 1).bit_length()) <= total
            block = range(room.address, room.address + (1 << (count - 1).bit_length()))
            for other, size in held:
                assert not set(block) & set(range(other.address, other.address + (1 << (size - 1).bit_length())))
            mine = range(room.address, room.address + count)
            assert {gave[at] for at in mine if at in gave} == set(room.after)
            held.append((room, count))
        elif held:
            room, count = held.pop(node % len(held))
            buddy.give(room, count, node)
            gave.update(dict.fromkeys(range(room.address, room.address + count), node))
    for room, count in held:
        buddy.give(room, count, 99)
    assert {exponent: found for exponent, found in buddy.free.items() if found} == {
        exponent: found for exponent, found in Buddy(total).free.items() if found
    }


def test_a_buddy_rounds_up_and_fragments():
    buddy = Buddy(8)
    a, b = buddy.take(3), buddy.take(3)  # blocks of 4
    assert a is not None
    assert b is not None
    assert (a.address, b.address) == (0, 4)
    assert buddy.take(1) is None
    buddy.give(a, 3, 5)
    small = buddy.take(1)
    assert small == Room(0, (5,))
    assert buddy.take(4) is None
    buddy.give(small, 1, 6)
    whole = buddy.take(4)
    assert whole == Room(0, (5, 6))
    assert Buddy(6).take(5) is None  # cut into 4 and 2


@given(total=st.integers(0, 30), steps=STEPS)
def test_counted_bytes_are_never_taken_twice(total, steps):
    memory = Bytes(total)
    held: list[tuple[Room, int]] = []
    for node, (taking, count) in enumerate(steps):
        if taking:
            room = memory.take(count)
            assert (room is None) == (count > total - sum(size for _, size in held))
            if room is not None:
                held.append((room, count))
        elif held:
            room, count = held.pop()
            memory.give(room, count, node)
    assert memory.left == total - sum(size for _, size in held)
    assert sum(size for size, _ in memory.free) == memory.left
