"""What do I type? Verbs only; each calls one library function."""

from archwright.cli.main import main as main
