"""The build of tools/quickstart: runs bazel, and says how far it is and about how long it still takes.

usage: quickstart_build.py TARGET...

On a terminal one line is drawn anew each second; elsewhere a line is written every 30 s. What bazel says besides its progress
passes through. The time left goes by the actions done so far, those from a cache included, so it is a guess. Exits as bazel does.
"""

import re
import shutil
import subprocess
import sys
import time

PROGRESS = re.compile(r"\[([\d,]+) / ([\d,]+)\]")
CHATTER = re.compile(r"\s*$|(INFO|DEBUG|WARNING|Loading|Analyzing|Computing|Starting|Extracting|\[[\d,]+ / [\d,]+\])\b|\[|Target |  bazel-bin/|Build of |\$ ")
OPTIONS = ["--curses=no", "--color=no", "--show_progress_rate_limit=1", "--ui_event_filters=-info,-debug,-warning"]
LINE_SECONDS = 30
SURE_SECONDS = 10  # before, and before a twentieth is done, nothing is said of the time left


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def progress(done, total, seconds):
    """A line on `done` of `total` actions after `seconds`."""
    text = f"building: {done} of {total} steps ({100 * done // max(total, 1)} %) after {duration(seconds)}"
    if seconds >= SURE_SECONDS and 20 * done >= total and done < total:
        text += f", about {duration(seconds * (total - done) / done)} left"
    return text


class Screen:
    def __init__(self, stream):
        self.stream = stream
        self.is_terminal = stream.isatty()
        self.last = None

    def show(self, text, now):
        if self.is_terminal:
            self.stream.write("\r\x1b[K" + text[:shutil.get_terminal_size().columns - 1])
        elif self.last is None or now - self.last >= LINE_SECONDS:
            self.stream.write(text + "\n")
            self.last = now
        self.stream.flush()

    def say(self, line):
        self.stream.write(("\r\x1b[K" if self.is_terminal else "") + line)
        self.stream.flush()

    def end(self):
        self.say("")


def main():
    screen, began = Screen(sys.stderr), time.monotonic()
    done = total = 0
    bazel = subprocess.Popen(["bazel", "build", *OPTIONS, *sys.argv[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             errors="replace")
    for line in bazel.stderr:
        found = PROGRESS.match(line)
        if found:
            done, total = (int(number.replace(",", "")) for number in found.groups())
            screen.show(progress(done, total, time.monotonic() - began), time.monotonic())
        elif not CHATTER.match(line):
            screen.say(line)
    screen.end()
    status = bazel.wait()
    if status == 0:
        print(f"built in {duration(time.monotonic() - began)}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
