"""`python -m treadle.probe.daemon`: the process of one host, which a leader starts over ssh and talks to by stdin and
stdout.

Nothing about the probe is on its command line: the first line of stdin has the nonce. It ends when stdin does, whatever
it is doing, so when the leader or the connection to it ends.
"""

from __future__ import annotations

import json
import os
import sys
from queue import Queue
from threading import Thread

from treadle.planner.errors import InputError, TreadleError
from treadle.planner.version import __version__
from treadle.probe.member import Message, PairMember
from treadle.runtime.sockets import ipv4_addresses, named_interface

MOST_LINE = 1 << 22


class LineChannel:
    """JSON lines on stdin and stdout. A thread reads, and ends this process where there are no more."""

    def __init__(self) -> None:
        self.messages: Queue[Message] = Queue()
        Thread(target=self._read, name="treadle-leader", daemon=True).start()

    def send(self, message: Message) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def receive(self) -> Message:
        return self.messages.get()

    def _read(self) -> None:
        try:
            while line := sys.stdin.readline(MOST_LINE):
                self.messages.put(json.loads(line))
        finally:
            os._exit(0)


def main() -> None:
    """Serve the leader. What goes wrong is a message to it."""
    channel = LineChannel()
    hello = channel.receive()
    try:
        member = PairMember(address_of(hello.get("interface")), str(hello["nonce"]).encode())
        channel.send({"kind": "hello", "version": __version__, "at": member.at})
        member.serve(channel)
    except TreadleError as error:
        channel.send({"kind": "failed", "line": str(error)})
    except OSError as error:
        channel.send({"kind": "failed", "line": f"a stream ended: {error.strerror or error}"})


def address_of(interface: str | None) -> str:
    """The address of `interface`, of that of GLOO_SOCKET_IFNAME, or at which the leader's ssh arrived. Raises
    InputError."""
    if interface is not None:
        have = ipv4_addresses()
        if interface not in have:
            expected = f"have: {', '.join(sorted(have))}"
            raise InputError(f"found no interface {interface!r} with an IPv4 address, {expected}", where="--interface")
        return have[interface]
    named = named_interface()
    if named is not None:
        return named[1]
    arrived = os.environ.get("SSH_CONNECTION", "").split()
    if len(arrived) == 4 and ":" not in arrived[2]:
        return arrived[2]
    raise InputError("found no IPv4 address at which other hosts reach this one; name the interface with --interface")


if __name__ == "__main__":
    main()
