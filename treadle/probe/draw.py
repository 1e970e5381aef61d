"""A picture of a hardware profile: devices, switches, NICs, and links coloured by kind, as wide as they are fast."""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot
from typing import Any

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import MEBIBYTE, many
from treadle.planner.errors import InputError
from treadle.probe.draw_layout import Point, arrange
from treadle.probe.draw_racks import RACK_STEP, Racks
from treadle.report.svg import HoverArea, styled, text_of

MOST_NODES = 4
MOST_IN_RACKS = 16
"""Devices of the nodes that are drawn where racks have uplinks."""
MOST_DEVICES = 64
COLORS = {
    "nvlink": "#4a8f29",
    "nvswitch": "#4a8f29",
    "xgmi": "#c0392b",
    "ib": "#1f6fb2",
    "ethernet": "#d9822b",
    "loopback": "#7d5ba6",
    "pcie": "#8a8f98",
}
_OTHER_COLORS = ("#00838f", "#ad1457", "#5d4037", "#455a64")
_INK, _PAPER, _GREY, _PANEL = "#1c2733", "#ffffff", "#8a8f98", "#f5f7f9"
_HIGHLIGHT = "#e4572e"
_INCHES = 0.52


TRAFFIC = "traffic, as wide as its volume"


def topology_svg(
    hardware: Hardware, highlight: Mapping[tuple[int, int], float] | None = None, meaning: str = TRAFFIC
) -> str:
    """An `<svg>` element, the same text for the same input; at most MOST_NODES nodes are drawn.

    `highlight` maps (source rank, destination rank) to a weight above 0; these are drawn as arrows as wide as their
    weight, the links behind them pale, and `meaning` is their line in the legend. Raises MissingBackendError without
    matplotlib, InputError when a node has more than MOST_DEVICES devices.
    """
    if hardware.devices_per_node > MOST_DEVICES:
        found = f"found {hardware.devices_per_node} devices per node, expected at most {MOST_DEVICES} in a picture"
        raise InputError(found, where=hardware.name, path="$.devices")
    with styled() as figure:
        picture = _Picture(figure, hardware, highlight or {}, meaning)
        picture.draw()
        return text_of(figure, [(picture.axes, picture.areas)])


class _Picture:
    """One figure being drawn; coordinates are units of device spacing."""

    def __init__(
        self, figure: Any, hardware: Hardware, highlight: Mapping[tuple[int, int], float], meaning: str
    ) -> None:
        self.hardware = hardware
        self.highlight = highlight
        self.meaning = meaning
        self.panel = arrange(hardware)
        uplinks = hardware.network.uplinks if hardware.network else ()
        most = max(MOST_NODES, MOST_IN_RACKS // max(1, hardware.devices_per_node)) if uplinks else MOST_NODES
        self.nodes = min(hardware.nodes, most)
        self.racks = Racks.of(uplinks, hardware.nodes, self.nodes)
        self.pitch = 2 * self.panel.half_width + 0.5
        self.legend: dict[str, tuple[str, float]] = {}
        self.areas: list[HoverArea] = []
        self.pale = 0.3 if highlight else 1.0
        self.fastest = max([*(_rate(part) or 0 for part in (*hardware.links, *hardware.switches)), 1e-9])
        rows = self._legend_rows()
        left, right = -self.panel.half_width - 0.2, (self.nodes - 1) * self.pitch + self.panel.half_width + 0.2
        right = max(right, left + 11.0)
        self.left = left
        self.top = self.panel.top + 1.0
        self.foot = self.panel.bottom - 0.5 - (RACK_STEP * self.racks.levels + 0.6 if uplinks else 0)
        bottom = self.foot - 0.45 * rows - 0.3
        figure.set_size_inches((right - left) * _INCHES, (self.top - bottom) * _INCHES)
        self.axes = figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(left, right)
        self.axes.set_ylim(bottom, self.top)
        self.axes.set_axis_off()

    def draw(self) -> None:
        hardware = self.hardware
        devices = ", ".join(f"{device.count} x {device.model}" for device in hardware.devices)
        plural = "node" if hardware.nodes == 1 else "nodes"
        title = f"{hardware.name}: {hardware.nodes} {plural} of {devices}"
        if hardware.nodes > self.nodes:
            title += f" (the first {self.nodes} drawn)"
        if hardware.other_nodes:
            title += f", and {hardware.all_nodes - hardware.nodes} other (not drawn)"
        self._text(self.left + 0.2, self.top - 0.4, title, size=10, ha="left", weight="bold")
        if hardware.network is not None:
            self._network()
        for node in self.racks.place:
            self._node(node)
        self._highlights()
        for row, (label, (color, width)) in enumerate(self.legend.items()):
            y = self.foot - 0.45 * row
            self._line((self.left + 0.3, y), (self.left + 1.2, y), color, width, pale=1.0)
            self._text(self.left + 1.4, y, label, ha="left")

    def _legend_rows(self) -> int:
        """Collect the legend first, because the figure's height depends on it."""
        for link in self.hardware.links:
            times = f" x {link.count}" if link.count > 1 else ""
            self._explain(f"{link.kind}{times}", link.kind, link)
        for switch in self.hardware.switches:
            self._explain(f"{switch.kind}, per device", switch.kind, switch)
        if self.hardware.network is not None:
            per = "per NIC" if self.hardware.nics else "per device"
            kind = self.hardware.network.kind
            self._explain(f"{kind} between nodes, {per}", kind, self.hardware.network)
            for uplink in self.hardware.network.uplinks:
                nodes = many(len(uplink.nodes), "node")
                self.legend[f"uplink {uplink.name} of {nodes}: {_rate(uplink):.4g} GB/s per direction"] = (
                    self._color(kind),
                    self._width(uplink),
                )
        if self.hardware.pcie:
            self.legend["PCIe tree (squares are PCIe switches, boxes are NICs)"] = (_GREY, 0.8)
        if self.highlight:
            self.legend[self.meaning] = (_HIGHLIGHT, 2.5)
        return len(self.legend)

    def _explain(self, name: str, kind: str, part: Any) -> None:
        alpha, beta = part.alpha_us, part.beta_us_per_MB
        count = getattr(part, "count", 1)
        rate = _rate(part)
        costs = [f"{alpha:.4g} us" if alpha is not None else "alpha unknown"]
        costs.append(f"{beta / count:.4g} us/MiB ({rate:.4g} GB/s)" if rate else "beta unknown")
        self.legend.setdefault(f"{name}: {' + '.join(costs)}", (self._color(kind), self._width(part)))

    def _node(self, node: int) -> None:
        hardware, panel, shift = self.hardware, self.panel, self.racks.place[node] * self.pitch
        if hardware.nodes > 1:
            middle = (shift, (panel.top + panel.bottom) / 2)
            self._box(middle, (panel.half_width, (panel.top - panel.bottom) / 2), _PANEL, -5)
            self._text(shift - panel.half_width + 0.15, panel.top - 0.25, f"node {node}", ha="left", color=_GREY)
        for pcie in hardware.pcie:
            at = _moved(panel.pcie[pcie.name], shift)
            above = [panel.pcie[pcie.parent]] if pcie.parent is not None else []
            for end in (*above, *(panel.devices[device] for device in pcie.devices)):
                self._line(at, _moved(end, shift), _GREY, 0.8)
        for nic in hardware.nics:
            at = _moved(panel.nics[nic.name], shift)
            for end in [panel.pcie[nic.pcie]] if nic.pcie is not None else [panel.devices[it] for it in nic.devices]:
                self._line(at, _moved(end, shift), _GREY, 0.8)
        pairs = {(link.src, link.dst, link.kind): link for link in hardware.links}
        for (src, dst, kind), link in pairs.items():
            both = (dst, src, kind) in pairs
            if src < dst or not both:
                ends = _moved(panel.devices[src], shift), _moved(panel.devices[dst], shift)
                self._line(*ends, self._color(kind), self._width(link), arrow=not both, dashed=_rate(link) is None)
        self._fabrics(shift)
        self._nodes_parts(node, shift)

    def _fabrics(self, shift: float) -> None:
        for switch in self.hardware.switches:
            if switch.name not in self.panel.fabrics:
                continue
            left, right, y = self.panel.fabrics[switch.name]
            color = self._color(switch.kind)
            for member in switch.members:
                x, below = _moved(self.panel.devices[member], shift)
                self._line((x, below), (x, y), color, self._width(switch), dashed=_rate(switch) is None)
            self._box((shift + (left + right) / 2, y), ((right - left) / 2, 0.25), color, 4, edge=color)
            self._text(shift + (left + right) / 2, y, switch.name, color=_PAPER, zorder=5)

    def _nodes_parts(self, node: int, shift: float) -> None:
        from matplotlib.patches import Circle

        hardware, panel = self.hardware, self.panel
        for at in panel.pcie.values():
            self._box(_moved(at, shift), (0.13, 0.13), _PAPER, 4, edge=_GREY)
        for nic in hardware.nics:
            at = _moved(panel.nics[nic.name], shift)
            color = self._color(hardware.network.kind) if hardware.network else _GREY
            self._box(at, (0.36, 0.2), _PAPER, 4, edge=color)
            self._text(*at, nic.name if len(nic.name) <= 6 else "NIC", size=6.5, zorder=5)
        for local, at in enumerate(panel.devices):
            self.axes.add_patch(Circle(_moved(at, shift), 0.31, facecolor=_INK, edgecolor=_PAPER, zorder=6))
            rank = node * hardware.devices_per_node + local
            self._text(*_moved(at, shift), str(rank), color=_PAPER, zorder=7)
            self._named(_moved(at, shift), 0.31, f"rank {rank}, node {node}")

    def _network(self) -> None:
        from matplotlib.patches import Circle

        hardware, panel = self.hardware, self.panel
        assert hardware.network is not None
        color, width = self._color(hardware.network.kind), 2.0
        starts = list(panel.nics.values()) or list(panel.devices)
        for node in range(self.nodes):
            shift = node * self.pitch
            for at in starts:
                self._line(_moved(at, shift), self._edge_of_network(at, shift), color, 1.2, order=-1)
            if panel.ring is not None:
                circle = Circle(
                    (shift, 0), panel.network, fill=False, edgecolor=color, linewidth=width, alpha=self.pale, zorder=-1
                )
                self.axes.add_patch(circle)
                if node > 0 and not self.racks.uplinks:
                    self._line((shift - self.pitch + panel.network, 0), (shift - panel.network, 0), color, width)
        if self.racks.uplinks:
            self._uplinks(color)
        elif panel.ring is None:
            last = (self.nodes - 1) * self.pitch + panel.half_width
            self._line((-panel.half_width, -panel.network), (last, -panel.network), color, 3.0)

    def _uplinks(self, color: str) -> None:
        """A bar for every rack, from which its uplink leads to the bar of the row of racks, or of all, below it."""
        racks, base = self.racks, -self.panel.network
        core = base - RACK_STEP * (racks.levels + 1)
        ends = (-self.panel.half_width, (self.nodes - 1) * self.pitch + self.panel.half_width)
        self._line((ends[0], core), (ends[1], core), color, 3.0)
        for node, place in racks.place.items():
            y = base - RACK_STEP * racks.level_of(node) if racks.holds(node) else core
            self._line((place * self.pitch, base), (place * self.pitch, y), color, 1.2)
        for uplink, places, level, above in racks.drawn():
            y, parent = base - RACK_STEP * level, core if above is None else base - RACK_STEP * above
            left, right = places[0] * self.pitch, places[-1] * self.pitch
            half = self.panel.half_width - 0.1
            self._line((left - half, y), (right + half, y), color, 3.0)
            middle = (left + right) / 2
            self._line((middle, y), (middle, parent), color, 2.5)
            rate = f"{_rate(uplink):.4g} GB/s"
            self._text(middle + 0.15, (y + max(parent, y - RACK_STEP)) / 2, f"{uplink.name}: {rate}", ha="left")
            self._named((middle, (y + parent) / 2), 0.3, f"uplink {uplink.name}, {rate} per direction")

    def _edge_of_network(self, at: Point, shift: float) -> Point:
        x, y = at
        if self.panel.ring is None:
            return (x + shift, -self.panel.network)
        scale = self.panel.network / (x * x + y * y) ** 0.5
        return (x * scale + shift, y * scale)

    def _highlights(self) -> None:
        from matplotlib.patches import FancyArrowPatch

        most = max(self.highlight.values(), default=0)
        per_node = self.hardware.devices_per_node
        for (src, dst), weight in sorted(self.highlight.items()):
            start, end = self._rank_at(src), self._rank_at(dst)
            if weight <= 0 or start is None or end is None or src == dst:
                continue
            rad = self._bend(start, end, src // per_node != dst // per_node)
            bend = f"arc3,rad={rad}"
            style: Any = {"color": _HIGHLIGHT, "linewidth": 0.6 + 2.4 * weight / most, "alpha": 0.85, "zorder": 5.5}
            right, up = end[0] - start[0], end[1] - start[1]
            at = start[0] + right / 2 + up * rad / 2, start[1] + up / 2 - right * rad / 2
            self._named(at, 0.15, f"{src} → {dst}: {weight / most:.0%} of the traffic of the busiest pair")
            shape: Any = {"arrowstyle": "-|>", "mutation_scale": 7, "shrinkA": 11, "shrinkB": 12}
            self.axes.add_patch(FancyArrowPatch(start, end, connectionstyle=bend, **shape, **style))

    def _bend(self, start: Point, end: Point, leaves_node: bool) -> float:
        """Curvature of an arrow. Over a row, arcs inside a node stay below the fabric, others dive to the network."""
        if self.panel.ring is not None:
            return 0.18
        distance = hypot(end[0] - start[0], end[1] - start[1])
        if leaves_node:
            return min(0.6, 2 * self.panel.network / distance) * (1 if start[0] < end[0] else -1)
        return min(0.35, 1.8 / distance)

    def _rank_at(self, rank: int) -> Point | None:
        node, local = divmod(rank, self.hardware.devices_per_node)
        place = self.racks.place.get(node)
        return None if place is None else _moved(self.panel.devices[local], place * self.pitch)

    def _color(self, kind: str) -> str:
        network = (self.hardware.network.kind,) if self.hardware.network else ()
        kinds = (*(link.kind for link in self.hardware.links), *(s.kind for s in self.hardware.switches), *network)
        others = sorted(set(kinds) - set(COLORS))
        return COLORS.get(kind) or _OTHER_COLORS[others.index(kind) % len(_OTHER_COLORS)]

    def _width(self, part: Any) -> float:
        rate = _rate(part)
        return 1.0 if rate is None else 0.8 + 2.2 * min(1.0, rate / self.fastest)

    def _named(self, at: Point, half: float, text: str) -> None:
        """A square around `at` that shows `text`."""
        self.areas.append(HoverArea(at[0] - half, at[0] + half, text, at[1] - half, at[1] + half))

    def _line(self, start: Point, end: Point, color: str, width: float, **how: Any) -> None:
        """A line; `arrow` and `dashed` say how it looks, `order` what it lies on, `pale` its opacity."""
        order, style = how.get("order", 1), {"color": color, "linewidth": width, "alpha": how.get("pale", self.pale)}
        if how.get("arrow"):
            style |= {"arrowstyle": "-|>", "shrinkA": 11, "shrinkB": 12}
            self.axes.annotate("", xy=end, xytext=start, arrowprops=style, zorder=order)
        else:
            dashes = "--" if how.get("dashed") else "-"
            self.axes.plot(*zip(start, end, strict=True), dashes, zorder=order, solid_capstyle="round", **style)

    def _box(self, middle: Point, half: Point, fill: str, order: float, edge: str = "none") -> None:
        from matplotlib.patches import FancyBboxPatch

        corner = min(0.12, half[1] / 2)
        low = (middle[0] - half[0] + corner, middle[1] - half[1] + corner)
        width, height = (2 * (length - corner) for length in half)
        style: Any = {"boxstyle": f"round,pad={corner}", "facecolor": fill, "edgecolor": edge, "linewidth": 1}
        box = FancyBboxPatch(low, width, height, zorder=order, **style)
        self.axes.add_patch(box)

    def _text(self, x: float, y: float, text: str, **style: Any) -> None:
        plain = {"size": 8, "ha": "center", "va": "center_baseline", "color": _INK, "zorder": 3}
        self.axes.text(x, y, text, **{**plain, **style})


def _rate(part: Any) -> float | None:
    """GB/s (10^9 bytes) of a link with its parallels, of a switch port, or of the network; absent without beta."""
    beta = part.beta_us_per_MB
    return float(MEBIBYTE / beta * getattr(part, "count", 1) / 1e3) if beta else None


def _moved(point: Point, shift: float) -> Point:
    return (point[0] + shift, point[1])
