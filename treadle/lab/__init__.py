"""A hardware profile becomes hosts on one Linux machine: network namespaces with shaped links between them."""
