"""What tools/quickstart says of its time: before it begins, and while it builds. A bazel of the test's own plays the build.

usage: quickstart_test.py [TEST ...]
"""

import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile

from house import ROOT, drawn_on, main

BUILD = ROOT / "tools/quickstart_build.py"
PLAYED = """#!/bin/sh
echo "INFO: Invocation ID: 1" >&2
echo "[0 / 1] [Prepa] BazelWorkspaceStatusAction stable-status.txt" >&2
echo "[200 / 1,400] Compiling a.cc; 3s linux-sandbox ... (2 actions running)" >&2
echo "a.cc:3:1: warning: [not a step]" >&2
echo "ERROR: b.cc does not compile" >&2
echo "    note: [1 / 2]" >&2
echo "[1,400 / 1,400] no actions running" >&2
exit STATUS
"""


def built(folder, status, stderr=subprocess.PIPE):
    program = pathlib.Path(folder) / "bazel"
    program.write_text(PLAYED.replace("STATUS", str(status)))
    program.chmod(0o755)
    return subprocess.run([sys.executable, "-B", BUILD, "//a:b"], stderr=stderr, text=True, timeout=60,
                          env={**os.environ, "PATH": f"{folder}:/usr/bin:/bin"})


def test_it_says_first_how_long_it_takes():
    lines = (ROOT / "tools/quickstart").read_text().splitlines()
    first = next(line for line in lines if line.startswith("say "))
    assert re.search(r"up to \d+ minutes", first), first
    assert lines.index(first) < lines.index("tools/setup"), "it begins before it says how long"


def test_the_time_left():
    sys.path.insert(0, str(BUILD.parent))
    import quickstart_build as build

    assert build.progress(100, 400, 60) == "building: 100 of 400 steps (25 %) after 60 s, about 3 min left"
    assert build.progress(399, 400, 600).endswith("after 10 min, about 2 s left")
    for early in (build.progress(100, 400, 5), build.progress(3, 400, 60), build.progress(400, 400, 60), build.progress(0, 0, 60)):
        assert "left" not in early, early


def test_lines_where_there_is_no_terminal():
    with tempfile.TemporaryDirectory() as folder:
        done = built(folder, 0)
        assert done.returncode == 0 and done.stderr.startswith("building: 0 of 1 steps (0 %) after 0 s\n"), done
        assert done.stderr.count("building: ") == 1, "more than a line every 30 s"
        said = done.stderr.splitlines()[1:]
        assert said[:3] == ["a.cc:3:1: warning: [not a step]", "ERROR: b.cc does not compile", "    note: [1 / 2]"], said
        assert re.fullmatch(r"built in \d+ s", said[3]), said
        failed = built(folder, 3)
        assert failed.returncode == 3 and "ERROR: b.cc" in failed.stderr and "built in" not in failed.stderr, failed


def test_one_line_on_a_terminal():
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = pty.openpty()
        done = built(folder, 0, stderr=theirs)
        os.close(theirs)
        said = drawn_on(ours)
        assert done.returncode == 0 and "\r\x1b[Kbuilding: 200 of 1400 steps (14 %)" in said, repr(said)
        assert "\r\x1b[KERROR: b.cc does not compile" in said, repr(said)
        assert not re.search(r"building:[^\r]*\n", said), f"a line of progress stays: {said!r}"


if __name__ == "__main__":
    main([test_it_says_first_how_long_it_takes, test_the_time_left, test_lines_where_there_is_no_terminal, test_one_line_on_a_terminal])
