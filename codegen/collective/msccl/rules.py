"""The rules by which the public MSCCL runtimes refuse, skip or misread a file: a table, and its application to a file.

A rule has one of six effects. `refuses`: the runtime reports an error. `skips`: it never uses the file and says
nothing. `breaks`: it takes the file and hangs, computes something else or writes where it must not. `needs`: something
the file does not show must hold. `falls back`: calls of some kind silently run the library's own algorithm. `ignores`:
a part of the file has no effect.

Sources name the deciding function or constant of RCCL and msccl-executor-nccl (`src/misc/msccl/{msccl_parser,
msccl_setup,msccl_lifecycle}.cc`, `src/include/msccl/{msccl_parser,msccl_struct}.h`, `src/device/msccl_kernel_impl.h`);
microsoft/msccl has them under nearly the same names in `src/graph/{topo,xml}.cc` and `src/include/msccl.h`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from treadle.codegen.collective.msccl import rule_finds as find
from treadle.codegen.collective.msccl import rule_finds_blocks as blocks
from treadle.codegen.collective.msccl.runtimes import RUNTIMES, Name, Runtime
from treadle.codegen.collective.msccl.subject import Find, Spot, Subject

Effect = Literal["refuses", "skips", "breaks", "needs", "falls back", "ignores"]
FATAL: tuple[Effect, ...] = ("refuses", "skips", "breaks")
"""Effects with which the file cannot be used."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`sentence` says what the runtime does; `{names}` in it are fields of Runtime. `find` yields every place of a file
    where the rule applies."""

    id: str
    effect: Effect
    sentence: str
    source: str
    find: Find
    runtimes: tuple[Name, ...] = ("msccl", "rccl", "executor")

    def said_of(self, runtime: Runtime) -> str:
        """The sentence with the runtime's numbers."""
        return self.sentence.format(
            **{name: getattr(runtime, name) for name in Runtime.__slots__}, listed=", ".join(runtime.collectives)
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that applies to a file, with its first places."""

    rule: str
    effect: Effect
    sentence: str
    source: str
    spots: tuple[Spot, ...]
    places: int

    def __str__(self) -> str:
        return f"{self.sentence} ({self.places_named()}) [{self.rule}]"

    def places_named(self) -> str:
        """`line 3: found ...`, the first few."""
        named = [f"line {spot.line}: {spot.found}" if spot.line else spot.found for spot in self.spots]
        return "; ".join(named) + (f"; and {self.places - len(named)} more places" if self.places > len(named) else "")


MAX_SPOTS = 3


def judge(subject: Subject, name: Name) -> list[Finding]:
    """Every rule of runtime `name` that applies to a file, in the order of RULES."""
    runtime = RUNTIMES[name]
    findings = []
    for rule in RULES:
        spots = list(rule.find(subject, runtime)) if name in rule.runtimes else []
        if spots:
            sentence = rule.said_of(runtime)
            findings.append(Finding(rule.id, rule.effect, sentence, rule.source, tuple(spots[:MAX_SPOTS]), len(spots)))
    return findings


_BOTH: tuple[Name, ...] = ("rccl", "executor")
_PARSER = "XmlGetNode and XmlGetToken of the runtime's own XML reader"
_ALGO = "GetAlgoFromXmlFile"
_SELECT = "mscclInternalSchedulerSelectAlgo"

RULES: tuple[Rule, ...] = (
    Rule("xml-declaration", "refuses", "the file must begin with <algo>, comments apart; <?...?> is no element that "
         "its reader knows", _PARSER, find.declaration),
    Rule("plain-attributes", "refuses", 'attributes are written key="value" with double quotes and a blank, no tab and '
         "no line break, before each", _PARSER, find.unreadable_tag),
    Rule("nothing-between", "refuses", "only blanks and line breaks may stand between elements", _PARSER,
         find.stray_text),
    Rule("attribute-count", "refuses", "only the first {attributes} attributes of an element are read (a second blank "
         "counts as one), and a required one comes later", "MAX_ATTR_COUNT", find.late_attribute),
    Rule("token-length", "breaks", "names and values of over {token} characters are written behind their buffer",
         "MAX_STR_LEN", find.long_token),
    Rule("xml-nodes", "refuses", "elements of <algo>, of all <gpu> and of the own gpu's threadblocks and steps must "
         "stay below {nodes}", "MAX_NODES", find.many_nodes),
    Rule("xml-children", "breaks", "children after the {children}th of an element are written behind their buffer",
         "MAX_SUBS", find.many_children),
    Rule("compact-dialect", "breaks", "<op> elements are skipped, so the program is empty; write <step> elements (the "
         "old format of msccl-tools)", _PARSER, find.compact_dialect),
    Rule("missing-attribute", "refuses", "every attribute that it reads must be there", "XmlGetAttrStr",
         find.missing_attribute),
    Rule("collective-name", "refuses", "coll must be one of {listed}", _ALGO, find.collective_name),
    Rule("byte-range", "refuses", "minBytes must not be above maxBytes", _ALGO, find.inverted_range, ("msccl",)),
    Rule("empty-range", "skips", "no call has a byte count that is in the range and divisible by nchunksperloop",
         _SELECT, find.never_in_range, _BOTH),
    Rule("empty-range", "skips", "no call has a byte count of at least minBytes and below maxBytes; 0 means 0 here, "
         "not without limit", "the selection in ncclAllReduce, ncclAllToAll, ...", find.never_in_range, ("msccl",)),
    Rule("no-mode", "skips", "one of inplace and outofplace must be 1", _SELECT, find.no_mode, _BOTH),
    Rule("send-recv-out-of-place", "skips", "send and recv count as out of place", _SELECT, find.send_recv_in_place,
         _BOTH),
    Rule("warp-multiple", "refuses", "nthreads must be a multiple of 32", _ALGO, find.odd_threads, ("msccl",)),
    Rule("channel-count", "refuses", "at most {channels} channels exist", "MAXCHANNELS; mscclSetupConnections",
         find.many_channels, _BOTH),
    Rule("channel-count", "breaks", "at most {channels} channels exist; it warns and goes on", "MAXCHANNELS",
         find.many_channels, ("msccl",)),
    Rule("buffer-sizes", "refuses", "i_chunks and o_chunks must be 0 or fit nchunksperloop", _ALGO, blocks.buffer_sizes,
         ("msccl",)),
    Rule("blocks-per-gpu", "refuses", "a gpu has at most {blocks} threadblocks", "MAX_NUM_THREAD_BLOCKS",
         blocks.many_blocks),
    Rule("blocks-per-channel", "refuses", "at most {blocks_per_channel} threadblocks of a gpu send on a channel, and "
         "as many receive", "MAX_NUM_THREAD_BLOCKS_PER_CHANNEL", blocks.blocks_per_channel),
    Rule("channel-number", "refuses", "chan must not be above {channels}", _ALGO, blocks.channel_above),
    Rule("channel-off-by-one", "breaks", "chan {channels} passes the check (it tests for more than {channels}) and is "
         "one behind the last channel", _ALGO, blocks.channel_at_end),
    Rule("peer-number", "refuses", "send and recv must be below ngpus", _ALGO, blocks.peer_above, ("msccl",)),
    Rule("peer-number", "breaks", "send and recv are not compared with ngpus", _ALGO, blocks.peer_above, _BOTH),
    Rule("peer-itself", "refuses", "send and recv must name another gpu", _ALGO, blocks.peer_itself),
    Rule("steps-per-block", "refuses", "a threadblock has at most {steps} steps", "MAX_NUM_STEPS", blocks.many_steps),
    Rule("step-type", "refuses", "it does not know the type of a step", _ALGO, blocks.unknown_type),
    Rule("chunk-count", "refuses", "cnt is at most {count}", "MAX_COUNT 72", blocks.large_count),
    Rule("peerless-step", "refuses", "a step that sends or receives needs a peer", _ALGO, blocks.peerless),
    Rule("offset-behind", "refuses", "an offset must lie in its buffer", "CheckBufferBounds", blocks.offset_behind),
    Rule("offset-overrun", "breaks", "only the first chunk of an operand is compared with the buffer, and of rrc "
         "nothing: the step reaches behind it", "CheckBufferBounds", blocks.overrun),
    Rule("nop-chain", "refuses", "the step that ends a chain of nops must itself wait for something", _ALGO,
         blocks.broken_chain),
    Rule("fused-counts", "breaks", "neighbouring re steps with one destination and one source buffer are joined (up "
         "to {fused_reductions}), and all get the cnt of the last", _ALGO, blocks.fused_counts),
    Rule("awaited-block", "breaks", "the number of an awaited threadblock is kept in 8 bits with a sign: above "
         "{awaited_block} the wait looks at another flag", "dependentBid", blocks.high_block),
    Rule("silent-step", "breaks", "a flag is raised by a step with hasdep 1 that is no nop; nothing after the awaited "
         "step raises one, so the waiter spins for ever", "mscclRunInterpreter", blocks.silent_step),
    Rule("copy-element", "breaks", "<copy> elements are skipped", _PARSER, blocks.needed_copies),
    Rule("rank-count", "falls back", "the communicator has another number of ranks", _SELECT, find.rank_count),
    Rule("byte-count", "falls back", "the bytes of a call (count * type size, times the ranks for allgather, "
         "reducescatter and alltoall) are outside minBytes to maxBytes", _SELECT, find.byte_range),
    Rule("divisible-count", "falls back", "the count of a call, times the ranks for allgather, reducescatter and "
         "alltoall, is not divisible by nchunksperloop", _SELECT, find.indivisible),
    Rule("in-place", "falls back", "a call is in place and the file is not, or the reverse (in place: equal "
         "buffers; for allgather and gather the input, for reducescatter and scatter the output, is the rank's part of "
         "the other)", _SELECT, find.one_mode, _BOTH),
    Rule("in-place", "falls back", "a call is in place and the file is not, or the reverse; outofplace is not "
         "read", _SELECT, find.msccl_mode, ("msccl",)),
    Rule("reduction", "falls back", "the reduction of a call is avg or made by the user", _SELECT, find.reducing,
         _BOTH),
    Rule("first-match", "falls back", "another file of the folder matches first (in the order of the directory)",
         _SELECT, find.always("one file wins per call"), ("rccl",)),
    Rule("first-match", "falls back", "another file of the folder matches first (in the order of their names)", _SELECT,
         find.always("one file wins per call"), ("executor",)),
    Rule("enabled", "falls back", "the machine is not on the list, unless RCCL_MSCCL_FORCE_ENABLE=1, or "
         "RCCL_MSCCL_ENABLE=0, or two ranks of a process", "mscclSchedulerSelectAlgo, mscclCommCompatible",
         find.always("looked for in MSCCL_ALGO_DIR"), ("rccl",)),
    Rule("enabled", "falls back", "NCCL_MSCCL_ENABLE=0, or a process drives two GPUs", "mscclCommCompatible",
         find.always("looked for in MSCCL_ALGO_DIR"), ("executor",)),
    Rule("enabled", "falls back", "NCCL_ALGO does not name MSCCL, or four files are loaded already",
         "MSCCL_MAX_NUM_ALGOS", find.always("named in MSCCL_XML_FILES"), ("msccl",)),
    Rule("channels-available", "needs", "the communicator must have nchannels channels, else the first call that "
         "selects the file fails: set NCCL_MIN_NCHANNELS", "mscclSetupConnections", find.available_channels),
    Rule("resident-blocks", "needs", "a device must hold all threadblocks of its gpu at once, next to what else runs "
         "on it, else they wait for ones that never start (an A100 has 108 multiprocessors, an H100 132, an MI300X 304 "
         "compute units)", "the kernel launch: one block per threadblock, which spin", find.resident),
    Rule("whole-lines", "needs", "with proto LL128 every link inside a node must be NVLink or xGMI: over PCIe its "
         "128-byte stores may arrive in parts", "NCCL, src/graph/tuning.cc", find.whole_lines),
    Rule("slice-count", "needs", "a chunk must not exceed {slices} slots, whose flags would repeat", "MSCCL_MAX_ITER",
         find.many_slices),
    Rule("copy-element", "ignores", "<copy> elements are skipped", _PARSER, blocks.idle_copies),
    Rule("reduction-attribute", "ignores", "redop is read by no runtime, the reduction is the call's", _ALGO,
         find.redop),
    Rule("unknown-attribute", "ignores", "the attribute is not read", _ALGO, find.unread_attribute),
    Rule("unknown-element", "ignores", "the element is skipped", _PARSER, find.unknown_element),
)  # fmt: skip
"""One row per rule and effect; a rule that differs between runtimes has a row for each form."""
