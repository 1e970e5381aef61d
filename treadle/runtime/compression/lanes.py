"""Links as lanes: collectives are issued in the planned order, on all ranks alike, whatever is ready first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import NamedTuple


class Issue(NamedTuple):
    """Step `step` of group `group`, which holds `lanes`."""

    group: int
    step: int
    lanes: tuple[str, ...]


class Lanes:
    """A thread for each lane, which executes that lane's part of `order`, over and over.

    An issue that holds several lanes starts when it is at the head of all of them, on the thread of the first. So all
    ranks issue the collectives of a process group in one order, and lanes cannot block each other in a circle, for all
    are parts of one order. `execute` is called with an issue that was offered; it must not raise.
    """

    def __init__(self, order: Sequence[Issue], execute: Callable[[Issue], None]) -> None:
        names = dict.fromkeys(lane for issue in order for lane in issue.lanes)
        self.queues = {name: [issue for issue in order if name in issue.lanes] for name in names}
        self.heads = dict.fromkeys(names, 0)
        self.execute = execute
        self.offered: set[tuple[int, int]] = set()
        self.changed = Condition()
        self.closed = False
        for name in names:
            Thread(target=self._run, args=(name,), name=f"treadle-{name}", daemon=True).start()

    def offer(self, group: int, step: int) -> None:
        """Step `step` of `group` may start, which was executed as often as it was offered before."""
        with self.changed:
            self.offered.add((group, step))
            self.changed.notify_all()

    def close(self) -> None:
        """End the threads; one inside a collective ends after it."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _head(self, name: str) -> Issue:
        queue = self.queues[name]
        return queue[self.heads[name] % len(queue)]

    def _startable(self, name: str) -> bool:
        issue = self._head(name)
        return (
            issue.lanes[0] == name
            and (issue.group, issue.step) in self.offered
            and all(self._head(lane) is issue for lane in issue.lanes)
        )

    def _run(self, name: str) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.closed or self._startable(name))
                if self.closed:
                    return
                issue = self._head(name)
                self.offered.remove((issue.group, issue.step))
            self.execute(issue)
            with self.changed:
                for lane in issue.lanes:
                    self.heads[lane] += 1
                self.changed.notify_all()
