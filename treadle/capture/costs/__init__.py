"""Costs of each op of a captured trace, and of its other implementations.

`counting` counts the work from shapes, `roofline` models times and workspace from it, `measuring` runs each call on
this machine, `in_step` all of them in the order of the step, and `cache` keeps what was measured.
"""

from treadle.capture.costs.counting import with_counts as with_counts
from treadle.capture.costs.in_step import with_measured_in_step as with_measured_in_step
from treadle.capture.costs.measuring import with_measured as with_measured
from treadle.capture.costs.roofline import with_roofline as with_roofline
