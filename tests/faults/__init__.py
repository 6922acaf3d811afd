"""Kills and failing disks, under every verb that writes: the same command again must end as if nothing had been.

`python -m tests.faults --kills 200 --errors 100`; docs/reliability.md says what is done and what must hold.
"""
