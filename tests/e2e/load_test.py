"""The coordinator on one core under load: 100 submissions a second beside 1,000 steps a second of running jobs and 100 watches.
Prints how long CreateJob takes, and what was done meanwhile.

The workers are streams of this test's own that report every window as done and compute nothing: real ones would need more cores
than the coordinator. Each of the watches follows one running job; --watch-all adds some that follow all jobs.

usage: load_test.py [--seconds N] [--rate N] [--steps N] [--watches N] [--watch-all N] [--bars]
    --bars: fail where a figure misses its bar; else only where an answer is wrong or lacks
"""

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time

import stubs
from formats import token_rows, write_model
from house import Failure, House, Skipped, main, tell

stubs.load()

import grpc  # noqa: E402
from lorad.v1 import jobs_pb2 as api  # noqa: E402
from lorad.v1 import jobs_pb2_grpc  # noqa: E402
from lorad.worker.v1 import worker_pb2 as wire  # noqa: E402
from lorad.worker.v1 import worker_pb2_grpc  # noqa: E402

CREATE_P99_MS_MAX = 50
WORKERS = 10
JOBS_OF_EACH = 10

ARGUMENTS = argparse.ArgumentParser()
ARGUMENTS.add_argument("--seconds", type=int, default=30)
ARGUMENTS.add_argument("--rate", type=int, default=100, help="submissions a second")
ARGUMENTS.add_argument("--steps", type=int, default=1000, help="steps a second of all running jobs")
ARGUMENTS.add_argument("--watches", type=int, default=100)
ARGUMENTS.add_argument("--watch-all", type=int, default=0)
ARGUMENTS.add_argument("--bars", action="store_true")
# What a process of this test's does besides, and for whom.
ARGUMENTS.add_argument("--role", choices=["workers", "watches", "submissions"], help=argparse.SUPPRESS)
ARGUMENTS.add_argument("--address", help=argparse.SUPPRESS)
ARGUMENTS.add_argument("--memory", type=int, help=argparse.SUPPRESS)
ARGUMENTS.add_argument("--jobs", help=argparse.SUPPRESS)


def the_job(priority=0):
    return {"base_model": "small", "training_dataset": "rows", "priority": priority,
            "adapter": {"rank": 64, "target_modules": ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]},
            "training": {"max_steps": 1_000_000, "batch_size": 1, "max_length": 64, "checkpoint_every_steps": 0}}


# ---- the three processes beside the coordinator ----

class Worker:
    """A worker's control stream. It reports each window `window_seconds` after the one before."""

    def __init__(self, address, name, memory_bytes, window_seconds):
        self.messages, self.windows = queue.SimpleQueue(), queue.SimpleQueue()
        self.window_seconds = window_seconds
        self.epoch, self.number = 0, 0
        self.messages.put(wire.WorkerMessage(hello=wire.Hello(
            protocol_version=1, worker=name, version="0.1.0", device="cpu", device_name="nothing", memory_bytes=memory_bytes,
            threads=1, numerics_id="none", value_bytes=4)))
        channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.stream = worker_pb2_grpc.CoordinatorStub(channel).Control(iter(self.messages.get, None))
        for work in (self.listen, self.execute, self.beat):
            threading.Thread(target=work, daemon=True).start()

    def listen(self):
        try:
            for message in self.stream:
                kind = message.WhichOneof("content")
                if kind == "form_group":
                    self.epoch, self.number = message.form_group.epoch, 0
                    self.report(group_formed=wire.GroupFormed(reserved_bytes=1 << 20, load_seconds=0.01))
                elif kind == "window":
                    self.windows.put(message.window)
                elif kind not in ("welcome", "acknowledge"):
                    raise Failure(f"a worker that only steps was told to {kind}")
        except Exception as error:
            print(f"the worker's stream ended: {error}", flush=True)
            os._exit(1)

    def report(self, **content):
        self.number += 1
        self.messages.put(wire.WorkerMessage(report=wire.Report(epoch=self.epoch, number=self.number, **content)))

    def execute(self):
        ready = time.monotonic()
        for window in iter(self.windows.get, None):
            ready = max(ready + self.window_seconds if window.microbatches else 0, time.monotonic())
            time.sleep(max(0, ready - time.monotonic()))
            self.tell_done(window)

    def tell_done(self, window):
        batches = {batch.job: batch for batch in window.batches}
        for microbatch in window.microbatches:
            lengths = [len(segment.input_ids) for segment in microbatch.segments]
            self.report(microbatch_done=wire.MicrobatchDone(
                microbatch=microbatch.number, tokens=sum(lengths), squared_lengths=sum(n * n for n in lengths), forward_ms=30,
                backward_ms=60, adapters=len({segment.job for segment in microbatch.segments})))
        for operation in window.operations:
            if operation.kind == wire.Operation.LOAD_SLOT:
                self.report(slot_loaded=wire.SlotLoaded(job=operation.job, step=operation.step, bytes=1 << 16))
            elif operation.kind == wire.Operation.STEP:
                batch = batches[operation.job]
                self.report(step_done=wire.StepDone(
                    job=operation.job, step=operation.step, loss=1.5, grad_norm=0.5, learning_rate=operation.learning_rate,
                    trained_tokens=batch.trained_tokens, tokens=batch.tokens, step_time_ms=1000 * self.window_seconds))
            elif operation.kind in (wire.Operation.FREE_SLOT, wire.Operation.SAVE):
                raise Failure("nobody's slot was to be saved or freed")
        self.report(window_done=wire.WindowDone(window=window.number, busy_ms=1000 * self.window_seconds))

    def beat(self):
        while True:
            time.sleep(1)
            self.messages.put(wire.WorkerMessage(heartbeat=wire.Heartbeat(
                epoch=self.epoch, resident_bytes=1 << 28, peak_resident_bytes=1 << 28)))


def work(options):
    for i in range(WORKERS):
        Worker(options.address, f"w{i}", options.memory, WORKERS * JOBS_OF_EACH / options.steps)
    print("ready", flush=True)
    sys.stdin.read()  # until it is ended


def watch(options):
    """Counts what comes, and checks that no watch misses or repeats a revision's place."""
    jobs = options.jobs.split(",")
    counts = [0] * (options.watches + options.watch_all)

    def follow(i, names):
        channel = grpc.insecure_channel(options.address, options=[("grpc.use_local_subchannel_pool", 1)])
        newest, steps = 0, {}
        try:
            for change in jobs_pb2_grpc.JobsStub(channel).WatchJobs(api.WatchJobsRequest(names=names)):
                if change.revision <= newest:
                    raise Failure(f"revision {change.revision} after {newest}")
                if change.job.step < steps.get(change.job.name, 0):
                    raise Failure(f"{change.job.name} went back to step {change.job.step}")
                newest, steps[change.job.name] = change.revision, change.job.step
                counts[i] += 1
        except Exception as error:
            print(f"a watch ended: {error}", flush=True)
            os._exit(1)
    for i in range(len(counts)):
        threading.Thread(target=follow, args=(i, [jobs[i % len(jobs)]] if i < options.watches else []), daemon=True).start()
    while not all(counts):
        time.sleep(0.1)
    print("ready", flush=True)
    before = list(counts)
    sys.stdin.read()
    came = [now - then for now, then in zip(counts, before)]
    print(json.dumps({"messages": sum(came), "least": min(came)}), flush=True)


def submit(options):
    """At the moments that the rate says, however long the answers take; a time counts from the moment it was due."""
    channel = grpc.insecure_channel(options.address)
    jobs = jobs_pb2_grpc.JobsStub(channel)
    created = the_job()
    message = api.CreateJobRequest(job=api.Job(
        base_model=created["base_model"], training_dataset=created["training_dataset"], adapter=created["adapter"],
        training=created["training"], labels={"team": "math"}))
    jobs.ListJobs(api.ListJobsRequest(page_size=1))  # it is connected
    times_ms, errors, calls = [], [], []
    print("ready", flush=True)
    begin = time.monotonic()

    def ended(call, due):
        if call.code() != grpc.StatusCode.OK:
            errors.append(f"{call.code().name}: {call.details()}")
        times_ms.append(1000 * (time.monotonic() - due))
    for i in range(options.rate * options.seconds):
        due = begin + i / options.rate
        time.sleep(max(0, due - time.monotonic()))
        call = jobs.CreateJob.future(message, timeout=60)
        call.add_done_callback(lambda call, due=due: ended(call, due))
        calls.append(call)
    seconds = time.monotonic() - begin
    for call in calls:
        call.exception()
    while len(times_ms) < len(calls):
        time.sleep(0.01)
    print(json.dumps({"times_ms": sorted(times_ms), "errors": errors, "seconds": seconds}), flush=True)


class Beside:
    """One of these processes; `with` ends it."""

    def __init__(self, house, role, *options):
        self.command = [sys.executable, "-B", __file__, "--role", role, "--address", house.address, *map(str, options)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect("ready")
        return self

    def expect(self, wanted=None):
        line = self.process.stdout.readline().rstrip("\n")
        if wanted and line != wanted or not line:
            raise Failure(f"{self.command[4]}: {line or 'it ended'}")
        return line

    def result(self):
        if self.process.poll() is None:
            self.process.stdin.close()
        return json.loads(self.expect())

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


# ---- the test ----

def start_pinned(house):
    """On a core of its own, as far as this test's processes go."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Skipped("needs two cores: the coordinator has one, its clients another")
    os.sched_setaffinity(0, cores[:1])
    house.start()
    os.sched_setaffinity(0, cores[1:])


def memory_for(house, jobs):
    house.start_worker("--name", "sized", "--threads", "1")
    house.wait_for_worker()
    path = house.folder / "sized.json"
    path.write_text(json.dumps(the_job()))
    memory = house.object("estimate", "-f", path)["peak_memory_bytes"]
    house.end_workers()
    of_slot = 4 * memory["adapters"] + memory["optimizer"]  # with the copy that is being saved: values and moments
    return int(1.03 * (memory["total"] + (jobs - 1) * of_slot) + of_slot / 4)


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def steps_done(house):
    return sum(job["step"] for job in house.objects("ls") if job["state"] == "RUNNING")


def test_load():
    house = House(None, "--workers", "none", "--microbatch-tokens", 1024)
    start_pinned(house)
    with_options = [f"--{name}={getattr(OPTIONS, name.replace('-', '_'))}" for name in ("seconds", "rate", "steps", "watches", "watch-all")]
    try:
        house.lora("model", "add", "small", "--path", write_model(house.folder / "model"))
        house.add_dataset("rows", token_rows(random.Random(1), 50, shortest=8, longest=16))
        memory = memory_for(house, JOBS_OF_EACH)
        with Beside(house, "workers", "--memory", memory, *with_options):
            names = [house.submit(the_job(priority=10)) for _ in range(WORKERS * JOBS_OF_EACH)]
            house.wait(names, until=lambda job: job["step"] >= 2, seconds=60)
            split = [len(group["jobs"]) for group in house.object("cluster")["groups"]]
            assert split == [JOBS_OF_EACH] * WORKERS, split
            with Beside(house, "watches", "--jobs", ",".join(names), *with_options) as watches:
                measure(house, watches, with_options)
    finally:
        house.stop()
    house.clear()


def measure(house, watches, with_options):
    with Beside(house, "submissions", *with_options) as submissions:
        before, cpu, began = steps_done(house), cpu_seconds(house.process.pid), time.monotonic()
        done = submissions.result()
        seconds = time.monotonic() - began
        steps, cpu = steps_done(house) - before, cpu_seconds(house.process.pid) - cpu
    seen = watches.result()
    times, count = done["times_ms"], OPTIONS.rate * OPTIONS.seconds
    p99 = times[len(times) * 99 // 100]
    tell(f"    {count} submissions at {count / done['seconds']:.1f} a second: CreateJob p50 {times[len(times) // 2]:.1f} ms, p99 {p99:.1f} ms "
         f"(bar {CREATE_P99_MS_MAX} ms), most {times[-1]:.1f} ms")
    tell(f"    meanwhile {steps / seconds:.0f} steps a second (asked for {OPTIONS.steps}), {seen['messages'] / seconds:.0f} messages a second to "
         f"{OPTIONS.watches} watches of a job and {OPTIONS.watch_all} of all; the coordinator computed {cpu / seconds:.2f} s a second, on one core")
    assert not done["errors"], f"{len(done['errors'])} of {count}, the first: {done['errors'][0]}"
    assert len(times) == count and len(house.objects("ls")) == count + WORKERS * JOBS_OF_EACH
    assert seen["least"] > 0, "a watch was told nothing"
    assert steps > 0
    if OPTIONS.bars:
        assert p99 < CREATE_P99_MS_MAX, f"CreateJob took {p99:.0f} ms at p99"
        assert steps / seconds > 0.95 * OPTIONS.steps, f"{steps / seconds:.0f} steps a second"


if __name__ == "__main__":
    OPTIONS = ARGUMENTS.parse_args()
    ROLES = {"workers": work, "watches": watch, "submissions": submit}
    if OPTIONS.role:
        ROLES[OPTIONS.role](OPTIONS)
    else:
        sys.argv[1:] = []
        main([test_load])
