"""A job of a study as a batch job of SLURM: what submitit runs on the other machine."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from archwright.lab.agent import Agent, Answer, Order


class BatchJob:
    """Does one job, and says how it goes on in lines of a file."""

    def __init__(self, order: Order, answers: str) -> None:
        self._order, self._answers = order, answers
        self._agent: Agent | None = None

    def __call__(self, job: dict[str, Any]) -> None:
        self._agent = agent = Agent(self._order)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.leave())
        hello = agent.hello()
        self._say(hello)
        if not hello["why"]:
            self._say(agent.do(job))
            agent.leave()

    def checkpoint(self, job: dict[str, Any]) -> Any:
        """Save where time is up or another job has precedence, and queue again."""
        from submitit.helpers import DelayedSubmission

        if self._agent is not None:
            self._agent.end()
        return DelayedSubmission(BatchJob(self._order, self._answers), job)

    def _say(self, what: Answer) -> None:
        with Path(self._answers).open("a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")
            file.flush()
            os.fsync(file.fileno())
