"""What the tests of faults share: a clock for waiting, a seed, latencies of another client, and things that go wrong."""

import contextlib
import ctypes
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import stubs
from formats import token_rows, write_model
from house import AWAY_STATES, Failure, LIVE_STATES, Skipped, running_seconds, tell

stubs.load()

import grpc  # noqa: E402
from lorad.v1 import jobs_pb2, jobs_pb2_grpc  # noqa: E402

# Of another client's GetJob, whatever goes wrong meanwhile.
GET_JOB_P99_MS = 50
CALLS_MIN = 400
CALL_SECONDS = 10


def seeded():
    """A generator by the seed that the command line gives as seed=N, or by a random one; prints it."""
    given = [word.removeprefix("seed=") for word in sys.argv[1:] if word.startswith("seed=")]
    seed = int(given[0]) if given else random.SystemRandom().randrange(2**31)
    tell(f"    seed {seed}")
    return random.Random(seed)


def until(predicate, seconds, what, pause=0.05):
    """Waits until the predicate holds, and returns what it returned."""
    deadline = running_seconds() + seconds
    while not (found := predicate()):
        if running_seconds() > deadline:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(pause)
    return found


def raise_descriptor_limit():
    """Of this process, as far as it may; returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


# ---- a small world ----

def add_small_model(house, name="small", **sizes):
    house.lora("model", "add", name, "--path", write_model(house.folder / f"model-{name}", **sizes))


def add_rows(house, name, seed=1, count=24, longest=200):
    house.add_dataset(name, token_rows(random.Random(seed), count, longest=longest))


def small_job(dataset="rows", model="small", rank=4, **training):
    return {"base_model": model, "training_dataset": dataset, "adapter": {"rank": rank},
            "training": {"max_steps": 40, "batch_size": 2, "max_length": 512, "checkpoint_every_steps": 5, **training}}


def step_of(house, job):
    return house.object("show", job)["step"]


def check_no_job_failed(house):
    failed = [job for job in house.objects("ls") if job["state"] == "FAILED"]
    assert not failed, "; ".join(f"{job['name']}: {job['error']}" for job in failed)


def is_live(job):
    return job["state"] in LIVE_STATES


def workers_of(house):
    """{name: (pid, restarts)} of those that are connected."""
    return {w["name"]: (w["pid"], w["restarts"]) for w in house.objects("worker", "ls") if w["state"] not in AWAY_STATES}


# ---- another client ----

def channel_to(address):
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


def ask(address, job, pause):
    """For ever, a line a call: the milliseconds it took, and what went wrong."""
    stub = jobs_pb2_grpc.JobsStub(channel_to(address))
    while True:
        began, error = running_seconds(), ""
        try:
            stub.GetJob(jobs_pb2.GetJobRequest(name=job), timeout=CALL_SECONDS)
        except grpc.RpcError as refused:
            if refused.code() == grpc.StatusCode.DEADLINE_EXCEEDED and running_seconds() - began < CALL_SECONDS - 1:
                continue  # it was the machine that stood still
            error = f"{refused.code().name}: {refused.details()}"
        tell(1000 * (running_seconds() - began), error)
        time.sleep(pause)


class Pace:
    """Another client, a process of its own that asks for one job again and again; `with` ends it and checks how long its
    answers took."""

    def __init__(self, house, job, pause=0.01, p99_ms=GET_JOB_P99_MS):
        self.command = [sys.executable, "-B", __file__, house.address, job, str(pause)]
        self.limit_ms = p99_ms
        self.times_ms, self.errors = [], []

    def listen(self):
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return  # it was ended in the middle of one
            ms, error = line.rstrip("\n").split(" ", 1)
            if error:
                self.errors.append(error)
            self.times_ms.append(float(ms))

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()
        until(lambda: self.times_ms, 20, "the first call of another client")
        self.times_ms.clear()  # it connected in that
        return self

    def __exit__(self, kind, *_):
        if kind is None:  # what goes wrong still does; of fewer calls the slowest alone would decide
            until(lambda: len(self.times_ms) >= CALLS_MIN, 60, f"{CALLS_MIN} calls of another client")
        self.process.kill()
        self.process.wait()
        self.thread.join(15)
        times = sorted(self.times_ms) or [0]
        p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
        tell(f"    another client's GetJob: {len(times)} calls, p99 {p99:.1f} ms, most {times[-1]:.1f} ms, {len(self.errors)} errors")
        if kind is None:
            assert not self.errors, f"{len(self.errors)} of {len(times)} calls failed, the first with {self.errors[0]}"
            assert p99 < self.limit_ms, f"another client's GetJob took {p99:.0f} ms at p99, not {self.limit_ms}"


# ---- what goes wrong ----

@contextlib.contextmanager
def stopped(pid):
    """A process that stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def mounted(folder, *arguments):
    """A file system on `folder`, for root."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, folder], capture_output=True, text=True)
    if done.returncode != 0:
        raise Skipped(f"may not mount here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def all_are_traced(pid, tracer):
    """Whether every thread of a process is, by that one."""
    for status in pathlib.Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # it has ended
            if f"\nTracerPid:\t{tracer}\n" not in status.read_text():
                return False
    return True


def strace(pid, *options):
    """Attached to a process with all its threads; `with` detaches it."""
    if not shutil.which("strace"):
        raise Skipped("needs strace")
    tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(pid), *options], stderr=subprocess.PIPE, text=True)
    until(lambda: tracer.poll() is not None or all_are_traced(pid, tracer.pid), 20, "strace is attached")
    if tracer.poll() is not None and (why := tracer.stderr.read().strip()):
        raise Skipped(f"strace may not attach: {why}")

    @contextlib.contextmanager
    def attached():
        try:
            yield
        finally:
            tracer.terminate()
            tracer.wait()
    return attached()


@contextlib.contextmanager
def hanging(path):
    """Whoever opens the file stands in the kernel from then on, as on a share whose server is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    content_class, add, open_permission, here = 4, 1, 0x10000, -100  # fanotify(7)
    group = libc.fanotify_init(content_class, os.O_RDONLY)
    marked = group >= 0 and libc.fanotify_mark(group, add, ctypes.c_uint64(open_permission), here, os.fsencode(path)) == 0
    try:
        if not marked:
            raise Skipped(f"may not hold up who opens a file: {os.strerror(ctypes.get_errno())}")
        yield
    finally:
        if group >= 0:
            os.close(group)


def fill(path, but=0):
    """Takes all room of the file system but for so many bytes."""
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
        file.flush()
        if but:
            file.truncate(max(0, file.tell() - but))


class Proxy:
    """Between a worker and its coordinator: forwards, and holds back what the worker says on the connections whose bytes
    hold a word, as long as that is said."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.target = (host, int(port))
        self.words = set()
        self.free = threading.Condition()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                worker, _ = self.server.accept()
                coordinator = socket.create_connection(self.target)
                for one, other, up in ((worker, coordinator, True), (coordinator, worker, False)):
                    threading.Thread(target=self.forward, args=(one, other, up), daemon=True).start()

    def forward(self, one, other, up):
        seen = b""
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if up:
                    seen = (seen + data)[-(1 << 16):] if not self.is_known(seen) else seen
                    with self.free:
                        self.free.wait_for(lambda: not any(word in seen for word in self.words))
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def is_known(seen):
        return b"/Control" in seen or b"/UploadShard" in seen

    @contextlib.contextmanager
    def holding(self, word):
        with self.free:
            self.words.add(word)
        try:
            yield
        finally:
            with self.free:
                self.words.discard(word)
                self.free.notify_all()

    def close(self):
        self.server.close()


def check_stops(house, seconds):
    """SIGTERM ends the daemon within a bound."""
    began = time.monotonic()
    assert house.stop(seconds) == 0, "the daemon did not end well"
    tell(f"    stopped in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    ask(sys.argv[1], sys.argv[2], float(sys.argv[3]))
