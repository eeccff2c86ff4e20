"""What is told of seeds by a program that fails, crashes and hangs on some of them."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

SCRIPT = pathlib.Path(__file__).with_name("play_seeds.py")
# Notes each seed that it plays, and the process that it leaves behind when it hangs.
FAKE = '''#!/usr/bin/env python3
import os, pathlib, subprocess, sys, time
case, first, count = sys.argv[1], int(sys.argv[sys.argv.index("--seed") + 1]), int(sys.argv[sys.argv.index("--seeds") + 1])
assert case == "histories of a site end as they should", case
folder = pathlib.Path(__file__).parent
for seed in range(first, first + count):
    (folder / f"seed-{seed}").touch()
    if seed == FAILS:
        print(f"with messages:\\n  seed {seed}\\n  seen := 1\\nseed {seed} failed; so does\\nsite_test --keep 3")
        sys.exit(1)
    if seed == CRASHES:
        os.abort()
    if seed == HANGS:
        (folder / "left").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
        time.sleep(1000)
    time.sleep(SECONDS)
'''


class Site:
    """A fake program in a folder of its own."""

    def __init__(self, folder, fails=0, crashes=0, hangs=0, seconds=0.0):
        self.folder = pathlib.Path(folder)
        self.program = self.folder / "fake"
        words = {"FAILS": fails, "CRASHES": crashes, "HANGS": hangs, "SECONDS": seconds}
        self.program.write_text(re.sub("|".join(words), lambda word: str(words[word[0]]), FAKE))
        self.program.chmod(0o755)

    def start(self, *arguments):
        return subprocess.Popen([sys.executable, "-B", SCRIPT, *map(str, arguments), "--binary", self.program],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def play(self, *arguments):
        """Its exit status, and all that it printed."""
        player = self.start(*arguments)
        out, _ = player.communicate(timeout=50)
        return player.returncode, out

    def played(self):
        return sorted(int(path.name.removeprefix("seed-")) for path in self.folder.glob("seed-*"))

    def hanging(self):
        return (self.folder / "left").exists()

    def nothing_is_left(self):
        pid, end = int((self.folder / "left").read_text()), time.monotonic() + 20
        while time.monotonic() < end:  # one that was killed is there until its new parent has seen it
            status = pathlib.Path(f"/proc/{pid}/stat")
            if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            time.sleep(0.05)
        return False


def test_all_go_well(folder):
    site = Site(folder)
    status, out = site.play(5, 43, "--jobs", 3)
    assert status == 0 and out.endswith("43 seeds played, 0 failed\n") and "FAILED" not in out, out
    assert site.played() == list(range(5, 48))


def test_one_fails(folder):
    """What it says is shown, and those behind it are played all the same."""
    site = Site(folder, fails=17)
    status, out = site.play(1, 40)
    assert status == 1 and out.endswith("\n40 seeds played, 1 failed\n"), out
    assert site.played() == list(range(1, 41))
    said, _, told = out.partition("FAILED: ")
    assert "site_test --keep 3" in said, out
    command = f"  {site.program} 'histories of a site end as they should' --seed 17 --seeds 1\n"
    assert told.startswith(f"seed 17: exit status 1; play it again by\n{command}"), out


def test_the_last_of_a_batch_fails(folder):
    site = Site(folder, fails=20)
    status, out = site.play(1, 20)
    assert status == 1 and out.endswith("\n20 seeds played, 1 failed\n"), out


def test_one_crashes(folder):
    site = Site(folder, crashes=28)
    status, out = site.play(1, 40)
    assert status == 1 and out.endswith("\n30 seeds played, 1 failed\n"), out
    assert f"FAILED: one of the seeds 21 to 30: ended by signal {signal.SIGABRT:d}; play it again by\n" in out, out
    assert "--seed 21 --seeds 10\n" in out, out


def test_one_hangs(folder):
    site = Site(folder, hangs=33)
    status, out = site.play(1, 40, "--limit", 5)
    assert status == 1 and out.endswith("\n30 seeds played, 1 failed\n"), out
    assert "FAILED: one of the seeds 31 to 40: did not end within 5 s; play it again by\n" in out, out
    assert site.nothing_is_left()


def test_a_time_limit(folder):
    site = Site(folder, seconds=0.05)
    status, out = site.play(1, 1000000, "--seconds", 1, "--jobs", 2)
    seeds = len(site.played())
    assert status == 0 and out.endswith(f"{seeds} seeds played, 0 failed\n") and 20 <= seeds < 1000, (seeds, out)


def test_broken_off(folder):
    """As by a terminal or by `timeout`: nothing goes on, and what was found is counted."""
    site = Site(folder, fails=3, hangs=12)
    player, end = site.start(1, 20, "--jobs", 2), time.monotonic() + 20
    while not (site.hanging() and 4 in site.played()):
        assert time.monotonic() < end
        time.sleep(0.02)
    player.send_signal(signal.SIGTERM)
    out, _ = player.communicate(timeout=20)
    assert player.returncode == 1 and re.search(r"broken off\n(3|10) seeds played, 1 failed\n$", out), out
    assert site.nothing_is_left()


def test_no_program(folder):
    site = Site(folder)
    os.remove(site.program)
    status, out = site.play(1, 20)
    assert status == 1 and out == f"{site.program}: no program\n", out


for test in (test_all_go_well, test_one_fails, test_the_last_of_a_batch_fails, test_one_crashes, test_one_hangs, test_a_time_limit,
             test_broken_off, test_no_program):
    with tempfile.TemporaryDirectory() as scratch:
        test(scratch)
