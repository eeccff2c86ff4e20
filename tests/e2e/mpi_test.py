"""Stages over MPI: two workers give the bytes of one, whoever is killed or stopped, and leave nothing behind.

usage: mpi_test.py [TEST...] [seed=N] [steps=N] [times=N]     times: that a group is formed to be timed
"""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from formats import token_rows, write_model
from house import BINARIES, LORAD, WORKER, House, Skipped, main, tell
from isolation import Subjects, outcome, steps_done_twice_alike
from staged import joins_within, until

OPTIONS = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
SEED = int(OPTIONS.get("seed", random.SystemRandom().randrange(2**31)))
STEPS = int(OPTIONS.get("steps", 100))
TIMES = int(OPTIONS.get("times", 3))  # so that one that is late does not make the median
SUBJECTS = Subjects(SEED, STEPS)
# Most of its bytes are embedding and head, which lie on different stages.
SHAPE = {"layers": 4, "vocabulary": 65536}
HELPER = BINARIES / "worker/mpi/lorad-mpi"
MICROBATCH = ("--microbatch-tokens", 1024)
LEASE_S = 10


def need_mpi():
    if shutil.which("ompi-server") is None:
        raise Skipped("no Open MPI")
    built = subprocess.run([HELPER, "check"], capture_output=True, text=True)
    if built.returncode:
        raise Skipped(f"lorad-mpi: {built.stderr.strip()}")


def parent_of(pid):
    """0: the process has ended."""
    with contextlib.suppress(OSError):
        return int(re.search(r"^PPid:\s+(\d+)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1])
    return 0


class Site:
    """A daemon whose workers and helpers keep their temporary files in a folder of the test's own; its path is short, as
    the names of MPI's sockets are bounded."""

    def __init__(self, *options):
        need_mpi()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lorad-", dir="/tmp"))
        self.house = House(self.folder / "house", "--workers", "none", *MICROBATCH, *options)

    def __enter__(self):
        self.before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(self.folder)
        self.house.folder.mkdir()
        self.house.__enter__()
        return self

    def __exit__(self, *how):
        try:
            for worker in self.house.workers:  # one that is killed leaves a folder to the next one
                worker.terminate()
                worker.wait()
            self.house.__exit__(*how)
            if how[0] is None:
                self.nothing_is_left()
        finally:
            os.environ.pop("TMPDIR")
            if self.before is not None:
                os.environ["TMPDIR"] = self.before
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self, name):
        """Those of that name whose temporary files lie in the folder."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cmdline").read_bytes().split(b"\0")[0].decode().endswith(name):
                    if f"TMPDIR={self.folder}".encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
            except OSError:  # it has ended, or is another user's
                continue
        return sorted(found)

    def helpers(self):
        """Those that workers have started. What a helper forks has its name until it becomes Open MPI's daemon."""
        workers = self.house.worker_pids()
        return [pid for pid in self.processes("lorad-mpi") if parent_of(pid) in workers]

    def nothing_is_left(self):
        names = ["lorad-mpi", "orted", "ompi-server", "lorad-worker"]
        until(lambda: not any(self.processes(name) for name in names), "the end of all processes")
        left = [path.name for path in self.folder.iterdir() if path != self.house.folder]
        assert not left, f"left in the temporary folder: {left}"
        assert not (self.house.data_dir / "ompi-server").exists()

    def start_worker(self, name, memory, transport="mpi"):
        return self.house.start_worker("--name", name, "--threads", 1, "--memory", memory, "--transport", transport)

    def has_workers(self, count):
        until(lambda: len(self.house.worker_pids()) == count, f"{count} workers")

    def groups(self):
        return self.house.object("cluster")["groups"]

    def epoch(self):
        """Of the group of two workers that there is; 0: none."""
        return max((int(group["epoch"]) for group in self.groups() if len(group["workers"]) == 2), default=0)

    def steps(self, names):
        return sum(self.house.object("show", name)["step"] for name in names)

    def goes_on(self, names, steps=3):
        goal = self.steps(names) + steps
        until(lambda: self.steps(names) >= goal, f"{steps} more steps", 120)


def jobs():
    return SUBJECTS.jobs()[:2]


def write_job(house, job):
    path = house.folder / "job.json"
    path.write_text(json.dumps(job))
    return path


def model():
    """Its directory, once for all tests."""
    if not hasattr(model, "folder"):
        model.folder = tempfile.TemporaryDirectory(prefix="lorad-model-")
        write_model(pathlib.Path(model.folder.name) / "model", seed=SEED, **SHAPE)
    return pathlib.Path(model.folder.name) / "model"


def prepare(house):
    generator = random.Random(SEED)
    house.lora("model", "add", "small", "--path", model())
    house.add_dataset("rows", token_rows(generator, 37))
    house.add_dataset("validation", token_rows(generator, 5))


def alone():
    """The outcome of the jobs on one worker, and a memory that is too small for one and enough for two; once for all tests."""
    need_mpi()
    if not hasattr(alone, "found"):
        with House(None, "--workers", "none", *MICROBATCH) as house:
            prepare(house)
            house.start_worker("--name", "small", "--threads", "1", "--memory", "2MiB")
            house.wait_for_worker()
            needed = [int(house.object("estimate", "-f", write_job(house, job))["peak_memory_bytes"]["total"]) for job in jobs()]
            house.end_workers()
            house.start_worker("--name", "large", "--threads", "1")
            house.wait_for_worker()
            names = [house.submit(job) for job in jobs()]
            house.wait(names)
            alone.found = outcome(house, names), min(needed) * 96 // 100
        house.clear()
    return alone.found


def test_bytes_of_one_worker():
    want, memory = alone()
    with Site("--transport", "mpi") as site:
        prepare(site.house)
        for name in ("w0", "w1"):
            site.start_worker(name, memory)
        site.has_workers(2)
        names = [site.house.submit(job) for job in jobs()]
        until(site.epoch, "a group of two workers")
        assert len(until(site.helpers, "helpers")) <= 2
        site.house.wait(names)
        compare("over MPI", outcome(site.house, names), want)


def compare(what, got, want):
    for (bytes_got, steps_got, evaluated_got), (bytes_want, steps_want, evaluated_want) in zip(got, want, strict=True):
        assert steps_got == steps_want and evaluated_got == evaluated_want, f"{what}: other figures"
        assert bytes_got == bytes_want, f"{what}: the adapter's bytes differ"
    tell(f"    {what}: {len(got)} adapters equal, bit for bit")


def test_workers_that_mpirun_launched():
    """What it says of its own job to the workers is no business of their helpers."""
    want, memory = alone()
    with Site("--transport", "mpi") as site:
        prepare(site.house)
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2, WORKER, "--coordinator", site.house.address,
                   "--threads", 1, "--memory", memory, "--transport", "mpi"]
        with open(site.house.log_path, "ab") as log:
            mpirun = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        site.house.workers.append(mpirun)
        site.has_workers(2)
        names = [site.house.submit(job) for job in jobs()]
        until(site.epoch, "a group of two workers")
        began = time.monotonic()
        site.house.wait(names)
        took = time.monotonic() - began
        compare(f"launched by mpirun ({took:.1f} s)", outcome(site.house, names), want)
        # Asked to end itself, mpirun would kill them a second later, and leave their helpers' folders.
        for pid in site.house.worker_pids():
            os.kill(pid, signal.SIGTERM)
        assert mpirun.wait(timeout=30) == 0


def formed_again(site, names, what, seconds=90):
    """Does `what`, and waits until the group has been formed again and trains."""
    epoch, began = site.epoch(), time.monotonic()
    what()
    until(lambda: site.epoch() > epoch, "the group formed again", seconds)
    site.goes_on(names, 1)
    return time.monotonic() - began


def test_whoever_is_killed_or_stopped():
    want, memory = alone()
    generator = random.Random(SEED)
    with Site("--transport", "mpi", "--lease", LEASE_S) as site:
        prepare(site.house)
        for name in ("w0", "w1"):
            site.start_worker(name, memory)
        site.has_workers(2)
        names = [site.house.submit(job) for job in jobs()]
        until(site.epoch, "a group of two workers")
        site.goes_on(names)

        def hit(program, signal_number):
            processes = until(lambda: site.processes(program), f"a process {program}")
            os.kill(generator.choice(processes), signal_number)

        def kill_worker():
            worker = site.house.workers.pop(0)
            worker.kill()
            worker.wait()
            site.start_worker("w2", memory)

        def stop_server():
            hit("ompi-server", signal.SIGSTOP)
            hit("lorad-mpi", signal.SIGKILL)

        hit("ompi-server", signal.SIGKILL)
        site.goes_on(names, 1)  # those that have joined need none
        for name, what in (("helper killed", lambda: hit("lorad-mpi", signal.SIGKILL)),
                           ("helper stopped", lambda: hit("lorad-mpi", signal.SIGSTOP)),
                           ("server stopped, helper killed", stop_server), ("worker killed", kill_worker)):
            tell(f"    {name}: trains again after {formed_again(site, names, what):.1f} s")
        site.house.wait(names)
        steps_done_twice_alike(site.house, names)
        compare("disturbed", outcome(site.house, names), want)


def test_transports_do_not_mix():
    _, memory = alone()
    with Site("--transport", "mpi") as site:
        prepare(site.house)
        site.start_worker("w0", memory)
        site.start_worker("w1", memory, "sockets")
        site.has_workers(2)
        (refused,) = site.house.wait([site.house.submit(jobs()[0])], state="FAILED")
        assert refused["error"]["reason"] == "MEMORY_NEVER_FITS", refused["error"]
        assert re.search(r"'w[01]' reaches other stages by '\w+', and worker 'w[01]' by '\w+': no group has both", site.house.log())
        # One that has the same makes a group.
        site.start_worker("w2", memory)
        site.has_workers(3)
        name = site.house.submit(jobs()[0])
        until(site.epoch, "a group of two workers")
        (group,) = site.groups()
        assert sorted(group["workers"]) == ["w0", "w2"], group
        site.house.run("cancel", name)


def test_a_worker_whose_coordinator_has_no_server_is_refused():
    with Site() as site:
        worker = site.start_worker("w0", "64MiB")
        assert worker.wait(30) == 1
        log = site.house.log()
        assert "worker 'w0' is refused" in log and "NO_MPI_SERVER" in log and "lorad serve --transport mpi" in log, log[-2000:]


def test_where_mpi_is_missing():
    """Runs also where it is."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorad-"))
    served = subprocess.run([LORAD, "serve", "--data-dir", folder / "data", "--listen", "127.0.0.1:0", "--workers", "none", "--transport", "mpi"],
                            capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": str(folder)})
    assert served.returncode == 1 and "MPI_MISSING" in served.stderr and "apt install" in served.stderr, served
    assert not (folder / "data").exists(), "nothing is touched"
    shutil.copy(WORKER, folder / "lorad-worker")
    worked = subprocess.run([folder / "lorad-worker", "--coordinator", "127.0.0.1:1", "--transport", "mpi"], capture_output=True, text=True, timeout=60)
    said = worked.stdout + worked.stderr
    assert worked.returncode == 1 and "MPI_MISSING" in said and f"{folder}/lorad-mpi" in said and "--transport sockets" in said, worked
    shutil.rmtree(folder)


def test_time_to_form():
    _, memory = alone()
    for transport, bar in (("sockets", 1), ("mpi", 3)):
        with Site("--transport", transport) as site:
            prepare(site.house)

            def begin(i):
                for stage in range(2):
                    site.start_worker(f"w{i}-{stage}", memory, transport)
                site.has_workers(2)
                return site.house.submit(jobs()[0])

            joins_within(site.house, transport, TIMES, bar, begin)


if __name__ == "__main__":
    tell(f"seed {SEED}, {STEPS} steps")
    main([test_where_mpi_is_missing, test_a_worker_whose_coordinator_has_no_server_is_refused, test_transports_do_not_mix,
          test_bytes_of_one_worker, test_workers_that_mpirun_launched, test_whoever_is_killed_or_stopped, test_time_to_form])
