"""Every schedule of the hand-worked fixtures (CoCoNet spec, section 7), written by hand and not derived."""

# ruff: noqa: F403, F405, F841 (programs are written as programs are)
from __future__ import annotations

from treadle.fusion import *
from treadle.planner.passes.fusion.program import Program

N = dims("N")
B, S, H = dims("B", "S", "H")


def sgd(schedule: str) -> Program:
    """7.1. `schedule`: "ar", "rs ag c", "rs c ag", "fused", "fused rs", "fused ag"."""
    g = Tensor("g", f32, [N], Local)
    p = Tensor("p", f32, [N], Replicated)
    lr = Scalars("lr", f32)
    if schedule == "ar":
        a = AllReduce("+", g)
        p_ = Update(p, p - lr * a)
        return Execute("sgd", [g, p, lr], [p_])
    rs = ReduceScatter("+", g)
    if schedule == "rs ag c":
        ag = AllGather(rs)
        p_ = Update(p, p - lr * ag)
        return Execute("sgd", [g, p, lr], [p_])
    p_s = Update(p, Slice(p) - lr * rs)
    ag_p = AllGather(p_s)
    if schedule == "fused":
        far = fuse("AllReduceFuse", rs, p_s, ag_p)
    if schedule == "fused rs":
        frs = fuse("ReduceScatterFuse", rs, p_s)
    if schedule == "fused ag":
        fag = fuse("AllGatherFuse", p_s, ag_p)
    return Execute("sgd", [g, p, lr], [ag_p])


def attention(schedule: str) -> Program:
    """7.2, computations apart: "ar", "rs ag c", "rs c ag", "fused", with "+" where they are fused first; "partial"."""
    w = Tensor("w", f32, [H, H], Sliced(0))
    x = Tensor("x", f32, [B, S, H], Sliced(2))
    b = Tensor("b", f32, [H], Replicated)
    r = Tensor("r", f32, [B, S, H], Replicated)
    layer = MatMul(x, w)
    kind = schedule.removesuffix("+")
    if kind in ("ar", "rs ag c"):
        if kind == "ar":
            total = AllReduce("+", layer)
        else:
            rs = ReduceScatter("+", layer)
            total = AllGather(rs)
        d = Dropout(total + b, 0.5, "attn.drop")
        out = d + r
        if schedule.endswith("+"):
            c = fuse("ComputationFuse", d, out)
        return Execute("attention", [w, x, b, r], [out])
    rs = ReduceScatter("+", layer)
    d_s = Dropout(rs + b, 0.5, "attn.drop")
    if kind in ("partial", "fused partial"):
        d = AllGather(d_s)
        if kind == "fused partial":
            far = fuse("AllReduceFuse", rs, d_s, d)
        out = d + r
        return Execute("attention", [w, x, b, r], [out])
    out_s = d_s + Slice(r)
    ag_out = AllGather(out_s)
    if schedule.endswith("+"):
        c = fuse("ComputationFuse", d_s, out_s)
    if kind == "fused":
        far = fuse("AllReduceFuse", rs, *([c] if schedule.endswith("+") else [d_s, out_s]), ag_out)
    return Execute("attention", [w, x, b, r], [ag_out])


def adam(schedule: str) -> Program:
    """7.3, computations fused: "ar", "rs ag c", "rs c ag", with "m", "v" or "mv" sliced behind it, "fused"."""
    sliced = schedule.removeprefix("rs c ag") if schedule.startswith("rs c ag") else "mv" if schedule == "fused" else ""
    g = Tensor("g", f32, [N], Local)
    p = Tensor("p", f32, [N], Replicated)
    m = Tensor("m", f32, [N], Sliced() if "m" in sliced else Replicated)
    v = Tensor("v", f32, [N], Sliced() if "v" in sliced else Replicated)
    lr, b1, b2, t, eps = Scalars("lr b1 b2 t eps", f32)
    inputs = [g, p, m, v, lr, b1, b2, t, eps]
    whole = schedule in ("ar", "rs ag c")
    if schedule == "ar":
        a = AllReduce("+", g)
    else:
        rs = ReduceScatter("+", g)
        a = rs
    if schedule == "rs ag c":
        ag = AllGather(rs)
        a = ag
    m0 = m if whole or "m" in sliced else Slice(m)
    v0 = v if whole or "v" in sliced else Slice(v)
    p0 = p if whole else Slice(p)
    m_ = Update(m, m0 * b1 + (1 - b1) * a)
    v_ = Update(v, v0 * b2 + (1 - b2) * a * a)
    m1 = m_ / (1 - Pow(b1, t))
    v1 = v_ / (1 - Pow(b2, t))
    p_ = Update(p, p0 - lr * m1 / (Sqrt(v1) + eps))
    c = fuse("ComputationFuse", m_, v_, m1, v1, p_)
    if whole:
        return Execute("adam", inputs, [p_])
    ag_p = AllGather(p_)
    if "m" not in sliced:
        ag_m = AllGather(m_)
    if "v" not in sliced:
        ag_v = AllGather(v_)
    if schedule == "fused":
        far = fuse("AllReduceFuse", rs, c, ag_p)
    return Execute("adam", inputs, [ag_p])


def pipeline(schedule: str) -> Program:
    """7.4: words "ar" or "rs" | "ag" at its place among "c" and "p", "cp" for the fused send; "fused p"."""
    y = Tensor("y", f32, [B, S, H], Local, GROUP)
    b = Tensor("b", f32, [H], Replicated, GROUP)
    r = Tensor("r", f32, [B, S, H], Replicated, GROUP)
    words = schedule.split()
    sliced = words[0] != "ar" or "ag" in words
    if words[0] == "ar":
        total = AllReduce("+", y)
        value = Slice(total) if "ag" in words else total
    else:
        rs = ReduceScatter("+", y)
        value = rs
    whole = not sliced
    for word in words[1:] if words[0] != "fused" else ["c", "ag", "p"]:
        if word == "ag":
            ag = AllGather(value)
            value, whole = ag, True
        if word in ("c", "cp"):
            c = Dropout(value + b, 0.1, "mlp.drop") + (r if whole else Slice(r))
            value = c
        if word in ("p", "cp"):
            o = Send(value, GroupRank(GROUP + 1, RANK))
            value = o
        if word == "cp":
            send = fuse("SendFuse", c, o)
    if words[0] == "fused":
        far = fuse("AllReduceFuse", rs, c, ag)
    return Execute("pipeline", [y, b, r], [value])


SCHEDULES = {
    "sgd": (sgd, ("ar", "rs ag c", "rs c ag", "fused")),
    "sgd extended": (sgd, ("ar", "rs ag c", "rs c ag", "fused", "fused rs", "fused ag")),
    "attention": (attention, ("ar+", "rs ag c+", "rs c ag+", "fused+")),
    "attention apart": (
        attention,
        (
            *("ar", "ar+", "rs ag c", "rs ag c+", "rs c ag", "rs c ag+"),
            *("fused", "fused+", "partial", "fused partial"),
        ),
    ),
    "adam": (adam, ("ar", "rs ag c", "rs c ag", "rs c agm", "rs c agv", "rs c agmv", "fused")),
    "pipeline": (
        pipeline,
        (
            *("ar c p", "ar cp", "rs ag c p", "rs ag cp", "rs c ag p", "fused p"),
            *("ar c ag p", "ar c p ag", "ar cp ag", "rs c p ag", "rs cp ag"),
        ),
    ),
}
"""How to write the schedules of a fixture, and all there are."""


def by_hand(fixture: str) -> dict[str, Program]:
    write, names = SCHEDULES[fixture]
    return {name: write(name) for name in names}
