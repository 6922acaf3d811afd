"""Training the runs of several settled folders in one stack, each recorded as if it were alone."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from archwright import checkpoint
from archwright.ensemble.session import Together
from archwright.machine.out_of_memory import explain_out_of_memory
from archwright.reporting.page import write_report
from archwright.runs import RunFolder
from archwright.training.data import Material, reload_data
from archwright.training.interrupt import Interrupt, interruptions
from archwright.training.loop import DivergedError, Elapsed, Loop
from archwright.training.progress import Silent
from archwright.training.resolve import resolved_session
from archwright.training.train import Finalizer, Stopped, new_loop

Lost = Callable[[RunFolder, DivergedError], None]


def train_together(
    folders: Sequence[RunFolder], ending: Finalizer, *, done: Sequence[bool], lost: Lost
) -> None:
    """Train what is left of the runs in settled folders up to their `ending`, in one stack.

    A stack keeps its size and its places for ever: a run that is `done`, or diverges on the way, keeps
    its place, where nobody looks at what is computed. So a stack that was cut off ends in the same numbers
    bit for bit. All save at the same steps, and go on from the newest that all have; no run ends before
    all others have saved their last step.

    Args:
        lost: called with a run whose loss is not finite any more.

    Raises:
        UserError: the text has changed, or another process trains here.
        Stopped: SIGTERM; the runs are saved.
    """
    with ExitStack() as locks, explain_out_of_memory():
        # In an order that all processes share, so that no two wait for each other.
        for folder in sorted(folders, key=lambda folder: folder.path):
            locks.enter_context(folder.lock())
        material = reload_data(folders[0].spec, folders[0])
        made = [resolved_session(folder, material) for folder in folders]
        together = Together([session for session, _ in made])
        loops = {
            i: new_loop(folder, *made[i], material, Silent())
            for i, folder in enumerate(folders)
            if not done[i]
        }
        started = _restore(loops)
        for loop in loops.values():
            loop.record("event", name=started, text=f"at step {loop.session.standing.step}")
        with interruptions() as interrupt:
            _Lockstep(together, loops, lost).run(interrupt)
            _end(loops, ending, material, interrupt)


class _Lockstep:
    """Loops that make each step at the same time, by their places in the stack."""

    def __init__(self, together: Together, loops: dict[int, Loop], lost: Lost) -> None:
        self.together, self.loops, self.lost = together, loops, lost

    def run(self, interrupt: Interrupt) -> None:
        """Train to the last step, or until an interrupt, and save."""
        while self.loops and not self._done and not interrupt:
            self._step()
            loops = self.loops.values()
            if self._done or interrupt or any(loop.wants_checkpoint() for loop in loops):
                for loop in loops:
                    loop.save()

    def _step(self) -> None:
        step = next(iter(self.loops.values())).session.standing.step
        start, cpu = time.perf_counter(), time.process_time()
        seen = self.together.gradients(step)
        number = len(self.loops)
        share = Elapsed(
            (time.perf_counter() - start) / number, (time.process_time() - cpu) / number
        )
        for i, loop in list(self.loops.items()):
            try:
                loop.advance(partial(loop.session.apply_gradients, seen[i]), share)
            except DivergedError as error:
                del self.loops[i]
                write_report(loop.folder)
                self.lost(loop.folder, error)
        for place, session in enumerate(self.together.sessions):
            if place not in self.loops:
                session.model.zero_grad(set_to_none=True)

    @property
    def _done(self) -> bool:
        return all(loop.done for loop in self.loops.values())


def _end(
    loops: Mapping[int, Loop], ending: Finalizer, material: Material, interrupt: Interrupt
) -> None:
    """Leave of each run what is wanted, one after another; of runs that were stopped, a page."""
    for loop in loops.values():
        if loop.done:
            ending(loop, loop.folder, material)
        else:
            loop.record("event", name="stopped", text=f"by {interrupt.name}")
            write_report(loop.folder)
    for loop in loops.values():
        if not loop.done:
            raise Stopped.at(loop.folder, loop.session.standing.step, interrupt)


def _restore(loops: Mapping[int, Loop]) -> str:
    """Go back to the newest checkpoint that all runs have; return how they begin."""
    for loop in loops.values():
        checkpoint.remove_stale(loop.folder.checkpoints_folder)
    saved = {loop: loop.folder.checkpoints() for loop in loops.values()}
    shared = sorted(set.intersection(*map(set, saved.values()))) if saved else []
    while shared:
        try:
            for paths in saved.values():
                checkpoint.verify(paths[shared[-1]], hashes=True)
            break
        except checkpoint.DamagedError:
            shared.pop()
    for loop, paths in saved.items():
        if shared:
            loop.session.restore(paths[shared[-1]])
        loop.folder.truncate_to(shared[-1] if shared else -1)
    return "resumed" if shared else "started"
