"""The learned index next to its peers: ALEX, a B+tree, std::map; each table is a command."""
