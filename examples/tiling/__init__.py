"""Programs of arrays whose tiling `treadle plan tiling` plans; `program` returns lazy arrays."""
