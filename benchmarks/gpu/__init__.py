"""Every check that needs a card, in one command: `python -m benchmarks.gpu`, or `make gpu`.

A check is a module of this room with `check(dry) -> Outcome`, which raises where something is wrong, and a line in
`items.ITEMS`. One that compiles kernels also has `kernels() -> Iterator[Kernel]`: the item `compile` builds them first,
on all cores, and the others find them in the cache. What starts the checks imports the standard library only.
"""
