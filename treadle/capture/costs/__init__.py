"""What each op of a captured trace, and each of its other implementations, costs.

`counting` counts the work from shapes, `roofline` models times and workspace from it, `measuring` runs each call on
the machine at hand, `in_step` all of them in the order of the step, and `cache` keeps what was measured.
"""

from treadle.capture.costs.counting import with_counts as with_counts
from treadle.capture.costs.in_step import with_measured_in_step as with_measured_in_step
from treadle.capture.costs.measuring import with_measured as with_measured
from treadle.capture.costs.roofline import with_roofline as with_roofline
