"""The rewrites that make schedules of programs: each validated, each a program to a program (CoCoNet, section 3)."""
