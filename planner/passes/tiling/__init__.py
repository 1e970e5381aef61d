"""The tiling pass: along which axes each array of a program, or tensor of a model, is cut over a mesh of workers."""
