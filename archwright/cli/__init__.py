"""The command line: verbs only; each calls one library function."""

from archwright.cli.main import main as main
