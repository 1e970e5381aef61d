"""The version of treadle, and how plans name the tool that made them."""

__version__ = "0.6.0"
TOOL = f"treadle {__version__}"
