"""The two binary trees of a double tree, as NCCL builds them (src/graph/trees.cc)."""

from __future__ import annotations


def binary_tree(size: int, mirrored: bool) -> tuple[int, list[tuple[int, int]]]:
    """(root, links parents first) of the binary tree over 0..size-1 whose leaves are the odd numbers, or its mirror
    image, shifted by one where `size` is odd, whose leaves are the even ones."""

    def label(number: int) -> int:
        if not mirrored:
            return number
        return (number + 1) % size if size % 2 else size - 1 - number

    def parent(number: int) -> int:
        bit = number & -number
        up = (number ^ bit) | bit << 1
        return up if up < size else number ^ bit

    children: dict[int, list[int]] = {}
    for number in range(1, size):
        children.setdefault(parent(number), []).append(number)
    edges, queue = [], [0]
    for number in queue:
        for child in children.get(number, ()):
            edges.append((label(number), label(child)))
            queue.append(child)
    return label(0), edges
