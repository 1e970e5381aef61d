"""Training with parameters on 1 server: three layers; computation takes longest.

Predicted 546.115 us for an exchange of the model by 6 workers.

    treadle serve plan.json --access access.json

    model = DistributedDataParallel(...)
    training = attach(model, optimizer, "access.json")

`plan.json` in this folder says which core of which server handles each part of a parameter; treadle executes it.
"""

from pathlib import Path

from treadle import server


def attach(model, optimizer, address, **options):
    """Train `model` with its parameters on the servers of the plan from now on. The result has step and close();
    options are those of `treadle.server.attach`."""
    return server.attach(model, optimizer, address, plan=Path(__file__).with_name("plan.json"), **options)
