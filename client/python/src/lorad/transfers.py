"""How far an upload or a download is: a bar of tqdm's in terminals and notebooks, a line where tqdm is not installed."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

from lorad.progress import DRAW_SECONDS, LINE_SECONDS, Redrawn, find_tqdm

QUIET_SECONDS = 1.0  # what is over sooner is not shown
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Transfer(Protocol):
    """Who is told of bytes that move. Threads: one at a time."""

    def at(self, moved: int) -> None:
        """So many have moved so far; fewer than before where they are sent again."""

    def close(self) -> None:
        """No more is told."""


class Silent:
    """Nothing is shown."""

    def at(self, moved: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Bar:
    """A bar of tqdm's: bytes of all bytes, how long it has taken and still takes, and how fast. It goes at the end."""

    def __init__(self, tqdm: Any, what: str, total: int) -> None:
        self._bar = tqdm(desc=what, total=total, unit="B", unit_scale=True, unit_divisor=1024, delay=QUIET_SECONDS, leave=False)

    def at(self, moved: int) -> None:
        """Moves the bar."""
        self._bar.update(moved - self._bar.n)

    def close(self) -> None:
        """Takes it away."""
        self._bar.close()


class Line:
    """The same as text: on a terminal a line that is drawn over and goes at the end, elsewhere a line now and then."""

    def __init__(self, what: str, total: int, out: Any = None) -> None:
        self._what, self._total, self._out = what, total, out or sys.stderr
        self._redrawn = Redrawn.on(self._out)
        self._begin = time.monotonic()
        self._next = self._begin + (QUIET_SECONDS if self._redrawn else LINE_SECONDS)

    def at(self, moved: int) -> None:
        """Writes the line where one is due."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (DRAW_SECONDS if self._redrawn else LINE_SECONDS)
        text = numbers(moved, self._total, now - self._begin)
        if self._redrawn:
            self._redrawn.draw(self._what, text)
        else:
            print(f"{self._what}  {text}", file=self._out, flush=True)

    def close(self) -> None:
        """Takes the line away."""
        self._next = float("inf")
        if self._redrawn:
            self._redrawn.clear()


def numbers(moved: int, total: int, seconds: float) -> str:
    """A transfer's share, bytes, speed and the time that it still takes, as words."""
    share = 100 * moved // total if total else 100
    words = [f"{share}%", f"{bytes_text(moved)} of {bytes_text(total)}"]
    if moved and seconds > 0:
        words += [f"{bytes_text(moved / seconds)}/s", f"{duration_text((total - moved) * seconds / moved)} left"]
    return "  ".join(words)


def bytes_text(count: float) -> str:
    """As lora writes them, e.g. "1.5 MiB"."""
    unit = 0
    while count >= 1024 and unit + 1 < len(UNITS):
        count, unit = count / 1024, unit + 1
    return f"{count:.1f} {UNITS[unit]}" if unit else f"{count:.0f} B"


def duration_text(seconds: float) -> str:
    """As lora writes it, e.g. "1m 05s"."""
    whole = round(max(seconds, 0.0))
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m {whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h {whole // 60 % 60:02}m"


def choose(progress: bool | None, what: str, total: int) -> Transfer:
    """None: a bar where somebody looks on and tqdm is installed, else lines. True: a bar if tqdm is installed.
    False: nothing."""
    if progress is False:
        return Silent()
    tqdm = find_tqdm(progress)
    return Bar(tqdm, what, total) if tqdm else Line(what, total)
