"""Plays histories of the simulated site on all cores: tools/seeds, on what is built already.

A process plays a batch of seeds; one that fails says which seed it was, crashes, or hangs.
"""

import argparse
import collections
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

# In a bundle of tools/gpu programs lie beside the script's folder; in a checkout in bazel-bin.
ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = "tests/sim/site_test"
CASE = "histories of a site end as they should"
BATCH = 10  # seeds to a process
TELL_SECONDS = 10
SHOWN = 20000  # characters at the end of a failed batch's log
NAMED = re.compile(r"^ *seed (\d+)\b", re.MULTILINE)


class Batch:
    """A process that plays a range of seeds, and those that it starts itself."""

    def __init__(self, binary, seeds, limit):
        self.seeds, self.limit = seeds, limit
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        command = [binary, CASE, "--seed", str(seeds.start), "--seeds", str(len(seeds))]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)
        self.end = time.monotonic() + limit

    def verdict(self):
        """None while it plays; "" where all went well; else how it ended."""
        status = self.process.poll()
        if status is None and time.monotonic() < self.end:
            return None
        if status is None:
            self.kill()
            return f"did not end within {self.limit:g} s"
        return f"exit status {status}" if status > 0 else f"ended by signal {-status}" if status else ""

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Player:
    """Plays batches, so many at once, and counts."""

    def __init__(self, options, binary):
        self.options, self.binary = options, binary
        end = options.first + options.count
        self.waiting = collections.deque(range(at, min(at + BATCH, end)) for at in range(options.first, end, BATCH))
        self.running = []
        self.played = self.failed = 0
        self.began = time.monotonic()

    def play(self):
        told = self.began
        while self.take() or self.running:
            for batch in list(self.running):
                how = batch.verdict()
                if how is not None:
                    self.running.remove(batch)
                    self.count(batch, how)
            if time.monotonic() - told > TELL_SECONDS:
                told += TELL_SECONDS
                self.tell_progress()
            time.sleep(0.02)

    def take(self):
        """Whether there is more to play, which is started where there is room."""
        if self.seconds() > self.options.seconds:
            self.waiting.clear()
        while self.waiting and len(self.running) < self.options.jobs:
            self.running.append(Batch(self.binary, self.waiting.popleft(), self.options.limit))
        return bool(self.waiting)

    def count(self, batch, how):
        """A seed that fails ends its batch: those behind it are played in another one."""
        seeds = batch.seeds
        if not how:
            self.played += len(seeds)
            return
        self.failed += 1
        text = batch.text()
        named = NAMED.search(text)
        if named and int(named[1]) in seeds:
            failed = int(named[1])
            self.played += failed - seeds.start + 1
            if rest := range(failed + 1, seeds.stop):
                self.waiting.append(rest)
            seeds = range(failed, failed + 1)
            what = f"seed {failed}"
        else:
            what = f"one of the seeds {seeds.start} to {seeds.stop - 1}"
        tell(f"{text[-SHOWN:].rstrip()}\nFAILED: {what}: {how}; play it again by\n"
             f"  {self.binary} '{CASE}' --seed {seeds.start} --seeds {len(seeds)}\n")

    def tell_progress(self):
        rate = self.played / self.seconds()
        left = sum(map(len, self.waiting)) + sum(len(batch.seeds) for batch in self.running)
        seconds = min(left / rate if rate else float("inf"), self.options.seconds - self.seconds())
        left = "-" if seconds == float("inf") else f"{max(seconds, 0):.0f} s"
        tell(f"{self.seconds():.0f} s: {self.played} seeds played, {self.failed} failed, {rate:.1f} a second; {left} left")

    def seconds(self):
        return time.monotonic() - self.began

    def end(self):
        for batch in self.running:
            batch.kill()
        tell(f"{self.played} seeds played, {self.failed} failed")


def tell(text):
    print(text, flush=True)


def interrupt(*_):
    raise KeyboardInterrupt


def positive(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def read_options():
    parser = argparse.ArgumentParser(description="Plays histories of the simulated site; exits with 1 where one failed.")
    parser.add_argument("first", type=positive, metavar="FIRST", help="the first seed")
    parser.add_argument("count", type=positive, metavar="COUNT", help="how many from there on")
    parser.add_argument("--jobs", type=positive, metavar="N", default=len(os.sched_getaffinity(0)), help="processes at once; all cores if not given")
    parser.add_argument("--seconds", type=float, metavar="S", default=float("inf"), help="then no more are begun")
    parser.add_argument("--limit", type=float, metavar="S", default=300, help=f"a batch of {BATCH} that has not ended by then failed; %(default)s if not given")
    parser.add_argument("--binary", type=pathlib.Path, metavar="FILE", help="a site_test that is built already")
    return parser.parse_args()


def play(options, binary):
    """Ends the process."""
    if not os.access(binary, os.X_OK):
        sys.exit(f"{binary}: no program")
    player = Player(options, binary.resolve())
    signal.signal(signal.SIGTERM, interrupt)
    try:
        player.play()
        status = bool(player.failed)
    except KeyboardInterrupt:
        tell("broken off")
        status = 1
    finally:
        player.end()
    sys.exit(status)


if __name__ == "__main__":
    built = ROOT / PROGRAM
    given = read_options()
    play(given, given.binary or (built if built.exists() else ROOT / "bazel-bin" / PROGRAM))
