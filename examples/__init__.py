"""Models and jobs to try treadle on."""
