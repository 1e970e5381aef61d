"""`python -m treadle` is the `treadle` command."""

from treadle.cli.main import main

main()
