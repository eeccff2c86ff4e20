"""Jobs that are evicted, moved, paused and drained at random moments, all in one run, end with the bytes of jobs that nobody
disturbed.

usage: disturbed_test.py [--seed N] [--times N] [--at-once N] [--devices DEVICE,..]
    --times 100: a hundred runs, by hand; the seeds follow each other
    --at-once: so many such tests side by side, each of --times runs
    --devices: that workers are on in turn; skips where there is no GPU of that name
"""

import argparse
import hashlib
import random
import subprocess
import sys
import time

from house import WORKER, Failure, House, main, tell
from placement_test import MICROBATCH_TOKENS, large_job, prepare, room_for

JOBS = 4
PASSED = "as if undisturbed"
STEPS = 2500  # at first: long enough for a move to pay, and short enough to wait for
STEPS_MOST = 8 * STEPS
ARGUMENTS = argparse.ArgumentParser()
ARGUMENTS.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
ARGUMENTS.add_argument("--times", type=int, default=1)
ARGUMENTS.add_argument("--at-once", type=int, default=1)
ARGUMENTS.add_argument("--devices", default="cpu")
ARGUMENTS.add_argument("--patience", type=float, default=1, help=argparse.SUPPRESS)  # of crowds: everything takes so many times as long


def subject(i, steps):
    made = large_job(steps=steps, seed=10 + i, schedule="COSINE", warmup_steps=5)
    made["adapter"]["dropout"] = 0.1 * i
    return made


def adapter_of(house, job):
    return hashlib.sha256((house.adapter(job) / "adapter_model.safetensors").read_bytes()).hexdigest()


def until(predicate, what):
    seconds = 60 * OPTIONS.patience
    end = time.monotonic() + seconds
    while not (found := predicate()):
        if time.monotonic() > end:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(0.02)
    return found


def reasons(house, job):
    return [event["reason"] for event in house.objects("events", job)]


def start_worker(house, number, *options):
    """The number-th: named by it, on the device whose turn it is."""
    devices = OPTIONS.devices.split(",")
    house.start_worker("--name", f"w{number}", "--threads", "1", "--device", devices[number % len(devices)], *options)


class Outrun(Exception):
    """The jobs ended before all had happened to them."""


class Run:
    """Four jobs on two workers that hold two each; then things happen to them."""

    def __init__(self, house, generator, room, steps):
        self.house, self.generator, self.room, self.steps = house, generator, room, steps
        for i in range(2):
            start_worker(house, i, "--memory", room)
        until(lambda: house.object("cluster")["workers"] == 2, "2 workers")
        self.jobs = [house.submit(subject(i, steps)) for i in range(JOBS)]

    def states(self):
        return [self.house.object("show", job) for job in self.jobs]

    def live(self):
        """The jobs that have steps to do; Outrun where none has."""
        found = [job for job in self.states() if job["state"] not in ("FINALIZING", "SUCCEEDED")]
        if not found:
            raise Outrun
        return found

    def until(self, predicate, what):
        """Outrun where it does not happen while jobs live."""
        return until(lambda: predicate() or not self.live(), what)

    def go_on(self, steps):
        """Waits until the foremost job that lives has done up to so many steps more, or its last one."""
        live = {job["name"]: job["step"] for job in self.live()}
        goal = min(max(live.values()) + self.generator.randrange(1, steps), self.steps)
        self.until(lambda: any(job["step"] >= goal for job in self.states() if job["name"] in live), f"step {goal}")

    def victims(self):
        return [job for job in self.jobs if "EVICTED" in reasons(self.house, job)]

    def evict(self):
        """Both workers are full, so one of higher priority takes a place."""
        self.until(lambda: all(job["state"] == "RUNNING" for job in self.states()), "all of them run")
        self.go_on(200)
        urgent = self.house.submit(large_job(steps=self.generator.randrange(1, 60), priority=3))
        self.until(self.victims, "a victim")
        self.house.wait([urgent])

    def move(self):
        """A third worker comes, and one of them goes there."""
        self.go_on(100)
        start_worker(self.house, 2, "--memory", self.room)
        self.until(lambda: any("MOVED" in reasons(self.house, job) for job in self.jobs), "a move")

    def pause(self):
        self.go_on(200)
        while (paused := self.house.run("pause", job := self.generator.choice(self.live())["name"])).status != 0:
            assert "JOB_ENDED" in paused.err or "JOB_FINALIZING" in paused.err, paused  # it was quicker
        if self.generator.random() < 0.7:  # else it is resumed while it leaves
            until(lambda: self.house.object("show", job)["state"] in ("PAUSED", "SUCCEEDED"), "PAUSED")
        time.sleep(self.generator.uniform(0, 0.3))
        resumed = self.house.run("resume", job)
        assert resumed.status == 0 or "JOB_ENDED" in resumed.err, resumed

    def drain(self):
        self.go_on(200)
        busy = self.until(lambda: [group["workers"][0] for group in self.house.object("cluster")["groups"] if group["jobs"]], "a busy worker")
        worker = self.generator.choice(busy)
        self.house.lora("worker", "drain", worker, "--reason", "a new disk", "--wait")
        time.sleep(self.generator.uniform(0, 0.3))
        self.house.lora("worker", "undrain", worker)

    def disturb(self):
        """Says what happened."""
        self.evict()
        self.move()
        others = [self.pause, self.pause, self.drain, self.drain]
        self.generator.shuffle(others)
        for other in others:
            other()
        live = len(self.live())
        self.house.wait(self.jobs)
        events = [reasons(self.house, job) for job in self.jobs]
        return ("evicted " + ", moved ".join(str(sum(job.count(reason) for job in events)) for reason in ("EVICTED", "MOVED"))
                + f", paused 2, drained 2; {live} of {JOBS} jobs outlived the last")


def undisturbed(house, steps):
    """What a worker of two jobs has room for, and the adapters of jobs of so many steps."""
    start_worker(house, 9)  # a name that nobody else has
    until(lambda: house.object("cluster")["workers"] == 1, "a worker")
    room = room_for(house, subject(0, steps), 2, gpu=OPTIONS.devices != "cpu")
    jobs = [house.submit(subject(i, steps)) for i in range(JOBS)]
    house.wait(jobs)
    want = [adapter_of(house, job) for job in jobs]
    assert len(set(want)) == JOBS, "bytes that do not depend on the job show nothing"
    house.end_workers()
    return room, want


def test_disturbed():
    with House(None, "--workers", "none", "--microbatch-tokens", MICROBATCH_TOKENS) as house:
        prepare(house)
        steps = STEPS
        room, want = undisturbed(house, steps)
        seeds = list(range(OPTIONS.seed, OPTIONS.seed + OPTIONS.times))
        while seeds:
            tell(f"    seed {seeds[0]}")
            run = Run(house, random.Random(seeds[0]), room, steps)
            try:
                what = run.disturb()
            except Outrun:
                assert steps < STEPS_MOST, f"jobs of {steps} steps ended before all had happened to them"
                house.wait([job["name"] for job in house.objects("ls")])
                house.end_workers()
                steps *= 2
                tell(f"    they ended before all had happened to them: again, with {steps} steps")
                room, want = undisturbed(house, steps)
                continue
            got = [adapter_of(house, job) for job in run.jobs]
            assert got == want, f"seed {seeds[0]}: of jobs {[i for i in range(JOBS) if got[i] != want[i]]} the bytes differ"
            tell(f"    {PASSED}: {what}")
            house.end_workers()
            seeds.pop(0)
    house.clear()


def test_disturbed_side_by_side():
    """As many tests of this kind at once, each in a process of its own, with seeds that follow each other."""
    command = [sys.executable, "-B", __file__, "--times", str(OPTIONS.times), "--devices", OPTIONS.devices, "--patience", str(OPTIONS.at_once)]
    seeds = [OPTIONS.seed + i * OPTIONS.times for i in range(OPTIONS.at_once)]
    runs = [subprocess.Popen([*command, "--seed", str(seed)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for seed in seeds]
    outputs = [run.communicate()[0] for run in runs]
    passed = sum(output.count(f"    {PASSED}: ") for output in outputs)
    tell(f"    {passed} of {OPTIONS.at_once * OPTIONS.times} runs, seeds {OPTIONS.seed} to {seeds[-1] + OPTIONS.times - 1}: "
         f"{JOBS * passed} jobs with the bytes of undisturbed ones")
    failed = [f"from seed {seed}:\n{output}" for seed, run, output in zip(seeds, runs, outputs) if run.returncode != 0]
    assert not failed, "\n".join(failed)
    assert passed == OPTIONS.at_once * OPTIONS.times, "some runs ended without a word"


def lacking():
    """A device that is wanted and not there."""
    there = subprocess.run([WORKER, "--list-devices"], capture_output=True, text=True, check=True).stdout.split()
    missing = [device for device in OPTIONS.devices.split(",") if device not in there]
    return f"no {missing[0]}" if missing else None


if __name__ == "__main__":
    OPTIONS = ARGUMENTS.parse_args()
    sys.argv[1:] = []
    main([test_disturbed if OPTIONS.at_once == 1 else test_disturbed_side_by_side], lacking=lacking())
