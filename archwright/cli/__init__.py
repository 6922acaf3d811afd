"""The command line: one module per verb, over functions of the library."""

from archwright.cli.main import main as main
