"""Regular expressions with a limit of time: Python's own have none, and one that goes back and forth keeps the interpreter
to itself, whatever thread it runs in. So they are searched for in a process of their own, which is ended and begun again.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from types import TracebackType

from lorad.errors import LoradError

SEARCH_SECONDS = 5.0  # for one text
START_SECONDS = 60.0
# A line a text: JSON in, its first group out.
PROGRAM = """
import json, re, sys
expression = re.compile(json.loads(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    found = expression.search(json.loads(line))
    print(json.dumps(found[1] if found else None), flush=True)
"""


class GaveUp(Exception):
    """The search took too long."""


class Matcher:
    """Searches texts for one expression. Belongs to one thread; to be used as a context."""

    def __init__(self, expression: str, seconds: float | None = None) -> None:
        self._expression, self._seconds = expression, SEARCH_SECONDS if seconds is None else seconds
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __enter__(self) -> Matcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def first_group(self, text: str) -> str | None:
        """The first group where the expression is found first, or None: it is not, or the group takes no part in it. GaveUp."""
        process = self._process or self._begin()
        assert process.stdin
        try:
            process.stdin.write(json.dumps(text) + "\n")
            process.stdin.flush()
        except OSError as error:
            self._end()
            raise _ended() from error
        group: str | None = json.loads(self._line(self._seconds))
        return group

    def _begin(self) -> subprocess.Popen[str]:
        self._lines = queue.SimpleQueue()
        try:
            self._process = subprocess.Popen(  # ASCII alone goes to and fro
                [sys.executable, "-I", "-S", "-c", PROGRAM, json.dumps(self._expression)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, encoding="ascii")
        except OSError as error:
            raise _failure(f"{sys.executable} does not start: {error}") from error
        threading.Thread(target=_read, args=(self._process, self._lines), daemon=True).start()
        try:
            self._line(START_SECONDS)
        except GaveUp:
            raise _failure(f"{sys.executable} does not start") from None
        return self._process

    def _line(self, seconds: float) -> str:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self._end()
            raise GaveUp from None
        if not line:
            self._end()
            raise _ended()
        return line

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        assert self._process.stdin
        try:
            self._process.stdin.close()
        except OSError:
            pass  # what it was yet to read
        self._process = None


def _failure(what: str) -> LoradError:
    return LoradError(what, code="INTERNAL", reason="SEARCH_FAILED")


def _ended() -> LoradError:
    return _failure("the process that searches for the expression has ended")


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Its lines, and "" at the end."""
    assert process.stdout
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put("")
