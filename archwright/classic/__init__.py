"""Special choices of published models, joined to the workbench as an outside package's are.

Nothing in archwright imports this package by name except `spec/installed.py`, which loads `classic.spec` when choices
are listed or a kind is unknown, and `classic.parts` when a choice has no part. Without this folder, its kinds are
unknown and all else works.
"""
