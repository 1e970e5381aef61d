"""Convolutions as kernels, computed directly (CoCoNet, rows 16 and 17 of the table in section 3.3).

Each rank convolves what it holds: its partial sums where channels are divided (row 16), its images (17a), its filters'
results (17b) or all of it (17c).
"""

from __future__ import annotations

from treadle.codegen.fusion.context import Context
from treadle.codegen.fusion.expression import CPP, identifier
from treadle.codegen.fusion.kernel import ANY, KernelText
from treadle.codegen.fusion.library import call_of
from treadle.codegen.templates import template
from treadle.planner.passes.fusion.stages import Stage


def emit(stage: Stage, context: Context) -> KernelText:
    """The kernel of a single Conv2d, [N, C, H, W] with [K, C, h, w]. Raises InputError for slices that are no blocks of
    a dimension."""
    node, call = stage.nodes[0], call_of(stage, context.scope)
    images, filters = call.lefts, call.rights
    batch, channels, kernels = ([shape[at] for shape in of] for of, at in ((images, 0), (images, 1), (filters, 0)))
    largest = " x ".join(str(max(each)) for each in (batch, channels, kernels))
    about = f"{node.name}: {node.type.dtype} Conv2d of {largest} images, channels and filters a rank"
    text = template("fusion/conv2d.cu.j2").render(
        name=identifier(node.name),
        about=about,
        type=CPP[node.type.dtype],
        batch=batch,
        channels=channels,
        kernels=kernels,
        image=images[0][2:],
        kernel=filters[0][2:],
        call=call,
    )
    return KernelText(identifier(node.name), text, ANY, "compute", about)
