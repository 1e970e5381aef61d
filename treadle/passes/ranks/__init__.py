"""The pass of ranks on this machine: its command, its section of the report, its part of a job."""
