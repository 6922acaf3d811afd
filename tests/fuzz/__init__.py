"""Files that a user may have damaged, edited or been sent, read by every reader of the package.

`python -m tests.fuzz --number 2000`; docs/reliability.md says what is tried and what is counted.
"""
