"""Sums over hosts under an aggregation plan that adapts while a job runs: `treadle.aggregate.attach(model, folder)` for
a DistributedDataParallel model, `treadle.aggregate.Aggregator(folder)` for other loops."""

from __future__ import annotations

from treadle.aggregate.aggregator import AggregationStatistics
from treadle.aggregate.ddp import AggregationHook
from treadle.aggregate.models import Aggregator, attach

__all__ = ["AggregationHook", "AggregationStatistics", "Aggregator", "attach"]
