"""The section of a job file on compressing gradients."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.job import ExchangeSection
from treadle.planner.documents.scalars import Name
from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import compressor


class CompressionJob(ExchangeSection, frozen=True, kw_only=True):
    compressors: tuple[Name, ...]
    """Candidates, such as `dgc:0.01`."""
    costs: Name | None = None
    """Shipped costs of compressors, or a file next to the job; None for those of the kind of machine."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if not self.compressors:
            yield "$.compressors", "none", "at least one, such as dgc:0.01"
        for place, name in enumerate(self.compressors):
            try:
                compressor(name)
            except InputError as error:
                yield f"$.compressors[{place}]", repr(name), str(error).partition("expected ")[2]
