"""How far a job is: a bar of tqdm's in terminals and notebooks, a line where tqdm is not installed."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Protocol

from lorad.v1 import jobs_pb2

LINE_SECONDS = 10.0  # between two lines of one state
DRAW_SECONDS = 0.2  # between two lines of which one is drawn over the other


class Progress(Protocol):
    """Who is told of a job."""

    def show(self, job: jobs_pb2.Job) -> None:
        """The job as it stands."""

    def clear(self) -> None:
        """Others may print now; what was drawn is drawn again when the job is shown next."""

    def close(self) -> None:
        """No more is told."""


def describe(job: jobs_pb2.Job) -> str:
    """A job in one line."""
    parts = [job.name, jobs_pb2.Job.State.Name(job.state)]
    if job.total_steps:
        parts.append(f"step {job.step}/{job.total_steps}")
    parts += numbers(job)
    if job.unsaved:
        parts.append(f"not saved: {job.unsaved}")
    if job.stalled:
        parts.append(f"stalled: {job.stalled}")
    if job.queue.why:
        parts.append(f"place {job.queue.place}: {job.queue.why}" if job.queue.place else job.queue.why)
    return "  ".join(parts)


def numbers(job: jobs_pb2.Job) -> list[str]:
    """What it trained, as words."""
    parts = []
    if job.HasField("loss"):
        parts.append(f"loss {job.loss:.4f}")
    if job.HasField("validation_loss"):
        parts.append(f"validation {job.validation_loss:.4f}")
    if job.tokens_per_second:
        parts.append(f"{job.tokens_per_second:.0f} tokens/s")
    return parts


def changing(job: jobs_pb2.Job) -> tuple[int, bool, bool]:
    """What is shown at once where it changes."""
    return job.state, bool(job.stalled), bool(job.unsaved)


class Silent:
    """Nothing is shown."""

    def show(self, job: jobs_pb2.Job) -> None:
        """Nothing."""

    def clear(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def columns_of(out: Any) -> int:
    """Of the terminal `out`; 0: it is none, or nobody knows how wide it is."""
    try:
        return os.get_terminal_size(out.fileno()).columns if out.isatty() else 0
    except (AttributeError, OSError, ValueError):  # it has no descriptor, as a notebook's, or none any more
        return 0


class Redrawn:
    """A line on the terminal `out` that is drawn over."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.drawn = False  # it stands there

    @classmethod
    def on(cls, out: Any) -> Redrawn | None:
        """None where a line cannot be drawn over: `out` is no terminal, or has no known width."""
        return cls(out) if columns_of(out) > 0 else None

    def draw(self, what: str, figures: str = "") -> None:
        """Both beside each other; what does not fit is cut off `what`."""
        room = columns_of(self._out) - 1  # a full line would wrap
        text = f"{what[:max(0, room - len(figures) - 2)]}  {figures}" if figures else what
        print(f"\r{text[:max(0, room)]}", end="\x1b[K", file=self._out, flush=True)
        self.drawn = True

    def clear(self) -> None:
        """Takes the line away."""
        if self.drawn:
            print(end="\r\x1b[K", file=self._out, flush=True)
        self.drawn = False

    def leave(self) -> None:
        """Leaves the line as it stands."""
        if self.drawn:
            print(file=self._out, flush=True)
        self.drawn = False


class Line:
    """A job in a line: on a terminal it is drawn over, elsewhere there is one where the state changes, or why the job is
    stalled or not saved, and now and then between."""

    def __init__(self, out: Any = None) -> None:
        self._out = out or sys.stderr
        self._redrawn = Redrawn.on(self._out)
        self._shown: tuple[int, bool, bool] | None = None
        self._next = 0.0
        self._warned = 0

    def show(self, job: jobs_pb2.Job) -> None:
        """Writes the line where one is due."""
        for warning in job.warnings[self._warned:]:
            self.clear()
            print(f"{job.name}  warning: {warning}", file=self._out, flush=True)
        self._warned = max(self._warned, len(job.warnings))
        stands = self._redrawn is None or self._redrawn.drawn
        if stands and changing(job) == self._shown and time.monotonic() < self._next:
            return
        self._shown, self._next = changing(job), time.monotonic() + (DRAW_SECONDS if self._redrawn else LINE_SECONDS)
        if self._redrawn:
            self._redrawn.draw(describe(job))
        else:
            print(describe(job), file=self._out, flush=True)

    def clear(self) -> None:
        """Takes the line away."""
        if self._redrawn:
            self._redrawn.clear()

    def close(self) -> None:
        """Leaves the line as it stands."""
        if self._redrawn:
            self._redrawn.leave()


class Bar:
    """A bar of tqdm's over the job's steps."""

    def __init__(self, tqdm: Any) -> None:
        self._bar = tqdm(total=None, unit="step")
        self._shown: tuple[int, bool, bool] | None = None
        self._warned = 0
        self._began = False

    def show(self, job: jobs_pb2.Job) -> None:
        """Moves the bar."""
        for warning in job.warnings[self._warned:]:
            self._bar.write(f"{job.name}  warning: {warning}")
        self._warned = max(self._warned, len(job.warnings))
        if job.total_steps:
            self._bar.total = job.total_steps
        if not self._began:  # the speed is that of steps that were looked on
            self._began = True
            self._bar.initial = self._bar.n = self._bar.last_print_n = job.step
        self._bar.set_description_str(f"{job.name} {jobs_pb2.Job.State.Name(job.state)}", refresh=False)
        words = [job.stalled, f"not saved: {job.unsaved}" if job.unsaved else "", *([] if job.stalled else numbers(job))]
        self._bar.set_postfix_str(", ".join(filter(None, words)) or job.queue.why, refresh=False)
        self._bar.update(job.step - self._bar.n)  # draws now and then; a job that is resumed goes back
        if changing(job) != self._shown:
            self._shown = changing(job)
            self._bar.refresh()

    def clear(self) -> None:
        """Takes the bar away."""
        self._bar.clear()
        self._shown = None

    def close(self) -> None:
        """Leaves the bar as it stands."""
        self._bar.close()


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    return found is not None and "IPKernelApp" in getattr(found, "config", {})


def find_tqdm(progress: bool | None) -> Any:
    """tqdm, where a bar is wanted or somebody looks on, and it is installed; else None."""
    if not (progress or in_notebook() or sys.stderr.isatty()):
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm


def choose(progress: bool | None) -> Progress:
    """None: a bar where somebody looks on and tqdm is installed, else a line. True: a bar if tqdm is installed.
    False: nothing."""
    if progress is False:
        return Silent()
    tqdm = find_tqdm(progress)
    return Bar(tqdm) if tqdm else Line()
