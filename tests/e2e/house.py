"""The built house, driven as a user does: `lorad serve` in a folder of its own and `lora` against it."""

import contextlib
import functools
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

# Below `bazel test` programs lie beside the test's data, and so they do in a bundle of tools/gpu; in a checkout in bazel-bin.
RUNFILES = os.environ.get("TEST_SRCDIR")
ROOT = pathlib.Path(RUNFILES) / "lorad" if RUNFILES else pathlib.Path(__file__).resolve().parents[2]
BINARIES = ROOT if (ROOT / "server/lorad").exists() else ROOT / "bazel-bin"
LORAD = BINARIES / "server/lorad"
WORKER = BINARIES / "worker/lorad-worker"
LORA = BINARIES / "client/lora"
PLAN = BINARIES / "planner/lorad-plan"
GOLDEN = ROOT / "tests/golden"

AWAY_STATES = {"AWAITED", "LOST"}  # of workers that are not connected
LIVE_STATES = {"VALIDATING", "QUEUED", "PREPARING", "RUNNING", "FINALIZING", "CANCELLING", "PAUSING", "PAUSED"}


class Failure(AssertionError):
    """A command that had to succeed did not."""


class Skipped(Exception):
    """Raised by a test that cannot run on this machine; says why."""


class Result:
    def __init__(self, command, done):
        self.command = " ".join(map(str, command))
        self.status = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    def objects(self):
        """stdout as JSON Lines."""
        return [json.loads(line) for line in self.out.splitlines() if line]

    def __str__(self):
        return f"$ {self.command}\nstatus {self.status}\n{self.out}{self.err}"


class House:
    """A daemon on a free port, its data in `folder`. Ended with `with`."""

    def __init__(self, folder=None, *options, lorad=LORAD, data="data"):
        self.folder = pathlib.Path(folder or tempfile.mkdtemp(prefix="lorad-e2e-", dir=os.environ.get("TEST_TMPDIR")))
        self.options = list(map(str, options))
        self.lorad = lorad
        self.data_dir = self.folder / data
        self.log_path = self.folder / "lorad.log"
        self.process = None
        self.address = None
        self.workers = []

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, *_):
        try:
            self.stop()
        finally:
            for worker in self.workers:
                worker.kill()
                worker.wait()
        if kind not in (None, Skipped):
            sys.stderr.write(f"--- the end of {self.log_path}\n{self.log()[-6000:]}\n---\n")

    def command(self, *options):
        return [self.lorad, "serve", "--data-dir", self.data_dir, "--worker-binary", WORKER,
                *([] if "--listen" in options else ["--listen", "127.0.0.1:0"]), *self.options, *options]

    def start(self, *options, seconds=60):
        """Starts the daemon and waits until it can serve; returns the seconds that took."""
        began = time.monotonic()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(list(map(str, self.command(*options))), stdout=subprocess.PIPE, stderr=log, text=True)
        lines = queue.Queue()
        stdout = self.process.stdout
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=seconds)
        except queue.Empty:
            line = ""
        match = re.fullmatch(r"lorad listening on (\S+:\d+)\n", line)
        if not match:
            self.process.kill()
            self.process.wait()
            raise Failure(f"lorad did not start: {line!r}\n{self.log()[-3000:]}")
        self.address = match[1]
        return time.monotonic() - began

    def stop(self, seconds=60):
        """A clean stop; returns the exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failure(f"lorad did not stop within {seconds} s of SIGTERM\n{self.log()[-3000:]}")
        status, self.process = self.process.returncode, None
        return status

    def kill(self):
        """SIGKILL, as a power cut would."""
        self.process.kill()
        self.process.wait()
        self.process = None

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def lora_command(self, *arguments):
        return [LORA, "--server", self.address or "127.0.0.1:1", *arguments]

    def run(self, *arguments, seconds=600, text=True, stdin=None):
        """Runs a command of `lora`'s and returns its Result, whatever it is."""
        command = list(map(str, self.lora_command(*arguments)))
        return Result(command, subprocess.run(command, capture_output=True, text=text, timeout=seconds, input=stdin))

    def lora(self, *arguments, **keywords):
        """The same, for a command that must succeed."""
        result = self.run(*arguments, **keywords)
        if result.status != 0:
            raise Failure(str(result))
        return result

    def objects(self, *arguments):
        return self.lora(*arguments, "--json").objects()

    def object(self, *arguments):
        (one,) = self.objects(*arguments)
        return one

    def submit(self, job):
        path = self.folder / "submitted.json"
        path.write_text(json.dumps(job))
        return self.lora("submit", "-f", path).out.strip()

    def wait(self, jobs, state="SUCCEEDED", seconds=600, until=None):
        """Waits until every job is done (or `until` says so of each) and returns them; they must end in `state`."""
        deadline = time.monotonic() + seconds
        found = {}
        while True:
            for name in jobs:
                if name not in found or found[name]["state"] in LIVE_STATES:
                    found[name] = self.object("show", name)
            if all(until(job) if until else job["state"] not in LIVE_STATES for job in found.values()):
                break
            if time.monotonic() > deadline:
                raise Failure(f"not done after {seconds} s: " + ", ".join(f"{n} {j['state']} {j['step']}/{j['total_steps']}" for n, j in found.items()))
            time.sleep(0.1)
        for name, job in found.items():
            if state and not until and job["state"] != state:
                raise Failure(f"{name} is {job['state']}, not {state}: {job['error']}\n{self.run('events', name)}")
        return [found[name] for name in jobs]

    def adapter(self, job, step=0):
        """Fetches a job's adapter and returns its directory."""
        directory = self.folder / "fetched" / f"{job}-{step}-{time.monotonic_ns()}"
        directory.parent.mkdir(exist_ok=True)
        self.lora("checkpoint", "get", job, *(["--step", step] if step else []), "-o", directory)
        return directory

    def start_worker(self, *options):
        """A worker of the test's own, for a daemon with --workers none: jobs submitted before it all start together."""
        with open(self.log_path, "ab") as log:
            worker = subprocess.Popen(list(map(str, [WORKER, "--coordinator", self.address, *options])), stdout=log, stderr=log)
        self.workers.append(worker)
        return worker

    def end_workers(self):
        """Ends those workers of the test's own, and waits until the daemon has none."""
        for worker in self.workers:
            worker.terminate()
            worker.wait()
        self.workers.clear()
        deadline = time.monotonic() + 60
        while any(worker["state"] not in AWAY_STATES for worker in self.objects("worker", "ls")):
            if time.monotonic() > deadline:
                raise Failure("workers that have ended are connected")
            time.sleep(0.05)

    def worker_pids(self):
        return [w["pid"] for w in self.objects("worker", "ls") if w["state"] not in AWAY_STATES and w["pid"] > 0]

    def wait_for_worker(self, count=1, seconds=30):
        deadline = time.monotonic() + seconds
        while sum(worker["state"] == "IDLE" for worker in self.objects("worker", "ls")) < count:
            if time.monotonic() > deadline:
                raise Failure(f"no {count} workers registered")
            time.sleep(0.05)

    def add_dataset(self, name, rows):
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.object("dataset", "add", name, path)

    def clear(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class RunningClock:
    """For bars and short limits, which are about lorad: as time.monotonic, but where all of this machine stands still for a while,
    of that no more than a blink is counted."""
    BLINK = 0.25

    def __init__(self):
        self.lock = threading.Lock()
        self.shown, self.looked = 0.0, time.monotonic()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            time.sleep(0.02)
            self.seconds()

    def seconds(self):
        with self.lock:
            now = time.monotonic()
            self.shown += min(now - self.looked, self.BLINK)
            self.looked = now
            return self.shown


@functools.cache
def running_clock():
    return RunningClock()


def running_seconds():
    """By that clock, which begins at the first call."""
    return running_clock().seconds()


def each_below(folder, look):
    """[look(path)] of all below a folder in which others write; what goes meanwhile is passed over."""
    found = []
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            with contextlib.suppress(FileNotFoundError):
                found.append(look(pathlib.Path(parent, name)))
    return found


def tell(*parts):
    print(*parts, flush=True)


def drawn_on(screen):
    """All that was written to its terminal until that was closed; one read may see but a part of it. Closes the screen."""
    seen = b""
    with contextlib.suppress(OSError):  # so a terminal ends
        while piece := os.read(screen, 65536):
            seen += piece
    os.close(screen)
    return seen.decode()


def main(tests, lacking=None):
    """Runs the test functions, names those that fail, and ends the process. `lacking` says why none of them can run here.
    tools/test reads how many ran, and counts the others as skipped."""
    source = pathlib.Path(sys.argv[0]).read_text(encoding="utf-8")
    forgotten = [name for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)
                 if name not in {test.__name__ for test in tests} and len(re.findall(rf"\b{name}\b", source)) == 1]
    assert not forgotten, f"no list names these tests, so they would never run: {', '.join(forgotten)}"
    wanted = [word for word in sys.argv[1:] if "=" not in word]  # seed=N is for the tests themselves
    tests = [test for test in tests if not wanted or test.__name__ in wanted]
    failures, skipped = [], 0
    for test in tests:
        began = time.monotonic()
        tell(f"--- {test.__name__}")
        try:
            if lacking:
                raise Skipped(lacking)
            test()
            tell(f"    passed in {time.monotonic() - began:.1f} s")
        except Skipped as why:
            skipped += 1
            tell(f"    skipped: {why}")
        except Exception as error:  # every test gets its turn
            traceback.print_exc()
            tell(f"    FAILED: {error}")
            failures.append(test.__name__)
    tell(f"cases: {len(tests) - skipped} ran, {skipped} skipped")
    tell(f"{len(failures)} failed" + (": " + ", ".join(failures) if failures else ""))
    sys.exit(1 if failures else 0)
