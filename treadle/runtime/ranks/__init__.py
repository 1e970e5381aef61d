"""Orders of hosts on real processes: a library's allreduce with its ranks in each of several orders."""
