"""Index plans as a command, a section of the report, and a run."""
