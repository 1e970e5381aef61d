"""What `treadle profile import` says of the fit of NCCL's own algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from treadle.cli.output import note, print_table
from treadle.planner.documents.scalars import format_bytes, many

if TYPE_CHECKING:
    from treadle.probe.nccl_library_fit import LibraryFit


def show_library(fit: LibraryFit) -> None:
    """The factors, every size with what ran and its residual, and where the model does not hold."""
    print_table(
        "NCCL's own algorithms: factors to its model",
        ("method", "sizes", "latency", "bytes"),
        [
            (method, sum(row.method == method for row in fit.rows), f"{of.latency:.4g}", f"{of.bytes:.4g}")
            for method, of in fit.library.methods.items()
        ],
    )
    print_table(
        "NCCL's own algorithms, as fitted",
        ("collective", "method", "size", "measured", "modelled", "residual"),
        [
            (
                row.collective,
                row.method,
                format_bytes(row.size),
                f"{row.measured:,.2f} us",
                f"{row.modelled:,.2f} us",
                f"{100 * row.residual:+.1f}%",
            )
            for row in fit.rows
        ],
    )
    for text in fit.left_out:
        note(f"left out {text}")
    if fit.far:
        worst = max(fit.far, key=lambda row: abs(row.residual))
        note(
            f"NCCL's model is off by more than a third at {many(len(fit.far), 'size')}, the most {worst.residual:+.0%} "
            f"at {format_bytes(worst.size)} of {worst.collective} ({worst.method}): run each NCCL_ALGO and NCCL_PROTO, "
            "or with NCCL_DEBUG_SUBSYS=TUNING"
        )


def library_facts(fit: LibraryFit) -> dict[str, Any]:
    """The same for programs."""
    sizes = [
        {
            "collective": row.collective,
            "method": row.method,
            "size_bytes": row.size,
            "measured_us": row.measured,
            "modelled_us": row.modelled,
            "residual": row.residual,
        }
        for row in fit.rows
    ]
    return {"factors": msgspec.to_builtins(fit.library.methods), "sizes": sizes, "left_out": list(fit.left_out)}
