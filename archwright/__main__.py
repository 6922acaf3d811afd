"""`python -m archwright` is the command `archwright`."""

from archwright.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
