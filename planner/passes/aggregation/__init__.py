"""Groups of near hosts, and who adds up which chunk within and between them."""
