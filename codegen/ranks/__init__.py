"""Plans of ranks as files that launchers read: hostfiles, rankfiles, and scripts that start every rank in its place."""
