"""One training job from model to report: capture, plan, check, generate, run, compare."""
