"""Sums over hosts under an aggregation plan that adapts while a job runs: `treadle.aggregate.attach(model, folder)` for
a DistributedDataParallel model, `treadle.aggregate.Aggregator(folder)` for other loops."""

from __future__ import annotations

from treadle.aggregate.models import Aggregator, attach
from treadle.runtime.aggregation.aggregator import AggregationStatistics
from treadle.runtime.aggregation.ddp import AggregationHook

__all__ = ["AggregationHook", "AggregationStatistics", "Aggregator", "attach"]
