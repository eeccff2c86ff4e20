"""Several workers as one on GPUs, a process each: jobs on 2 and 4 stages end with the bytes of one worker, by peer and
through the host's memory, and by NCCL where the stages have a GPU each, whoever is killed or stopped; the reference
runs. Skips where there are not so many GPUs.

usage: gpu_stages_test.py [TEST ...] [devices=cuda:0,cuda:1] [seed=N] [steps=N] [seconds=N]     seconds: of the storm
       Stages take the devices in turn.
"""

import os
import random
import signal
import subprocess
import sys
import time

import golden
from house import WORKER, Failure, House, main, tell
from isolation import Subjects, outcome, steps_done_twice_alike

OPTIONS = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
DEVICES = OPTIONS.get("devices", "cuda:0").split(",")
SEED = int(OPTIONS.get("seed", random.SystemRandom().randrange(2**31)))
STEPS = int(OPTIONS.get("steps", 20))
STORM_SECONDS = float(OPTIONS.get("seconds", 40))
SUBJECTS = Subjects(SEED, STEPS)
LAYERS = 4
MEMORY = "6GiB"  # of each worker: several share a GPU
FP32_LOSS_MAX = 1e-4  # relative, from PEFT's in float32 on a CPU
LEASE_S = 5
TRANSPORTS = {"peer": "by peer", "sockets": "through the host's memory"}  # and what is logged of each
if len(set(DEVICES)) > 1:  # which takes no GPU twice
    TRANSPORTS["nccl"] = "by NCCL"


def lacking():
    listed = subprocess.run([WORKER, "--list-devices"], capture_output=True, text=True, check=True).stdout
    there = {line.split()[0] for line in listed.splitlines()}
    absent = [device for device in DEVICES if device not in there]
    return f"no {', '.join(absent)} here" if absent else None


def start_workers(house, count, *options):
    for i in range(count):
        start_worker(house, f"w{i}", i, *options)


def start_worker(house, name, number, *options):
    return house.start_worker("--name", name, "--device", DEVICES[number % len(DEVICES)], "--memory", MEMORY, *options)


def until(predicate, what, seconds=120):
    end = time.monotonic() + seconds
    while not (found := predicate()):
        if time.monotonic() > end:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(0.05)
    return found


def groups(house):
    return [len(group["workers"]) for group in house.object("cluster")["groups"]]


def one_worker():
    """The outcome of jobs on one worker, once for all tests."""
    if not hasattr(one_worker, "found"):
        with House(None, "--workers", "none", "--microbatch-tokens", 1024) as house:
            SUBJECTS.prepare(house, layers=LAYERS)
            names = [house.submit(job) for job in SUBJECTS.jobs()]
            start_workers(house, 1)
            house.wait(names)
            one_worker.found = outcome(house, names)
        house.clear()
    return one_worker.found


def test_bytes_of_one_worker():
    want = one_worker()
    for stages in (2, 4):
        for transport, logged in TRANSPORTS.items():
            if transport == "nccl" and stages > len(set(DEVICES)):
                continue
            with House(None, "--workers", "none", "--microbatch-tokens", 1024) as house:
                SUBJECTS.prepare(house, "--stages", stages, layers=LAYERS)
                names = [house.submit(job) for job in SUBJECTS.jobs()]
                start_workers(house, stages, "--transport", transport)
                until(lambda: groups(house) == [stages], f"a group of {stages} workers")
                began = time.monotonic()
                house.wait(names)
                said = house.log().count(f"reaches stage 1 {logged}")
                assert said > 0, f"no stage says that it reaches stage 1 {logged}"
                SUBJECTS.compare(f"{stages} stages {logged} ({time.monotonic() - began:.0f} s)", outcome(house, names), want)
            house.clear()


def test_goldens():
    model, runs = "llama-gqa-untied", golden.RUNS["llama-gqa-untied"]
    for stages in (2, 4):
        with House(None, "--workers", "none") as house:
            house.lora("model", "add", model, "--path", golden.folder_of(model) / "model", "--stages", stages)
            for run in runs:
                house.lora("dataset", "add", golden.name_of(model, run), golden.folder_of(model, run) / "train.jsonl")
                house.lora("adapter", "import", golden.name_of(model, run), "--path", golden.folder_of(model, run) / "init")
            names = [house.submit(golden.job_of(model, run)) for run in runs]
            start_workers(house, stages, "--precision", "fp32")
            house.wait(names)
            for name, run in zip(names, runs):
                found = golden.differences(house, name, model, run)
                assert found["loss"] < FP32_LOSS_MAX, (stages, run, found)
        house.clear()


def test_storm():
    """SIGKILL and SIGSTOP of random workers that go by peer, then of such that go by NCCL; whoever is gone is started
    again."""
    storm("peer", workers=3)
    if "nccl" in TRANSPORTS:
        storm("nccl", workers=2)


def storm(transport, workers):
    want = one_worker()
    generator = random.Random(SEED + 1)
    with House(None, "--workers", "none", "--microbatch-tokens", 1024, "--lease", LEASE_S) as house:
        SUBJECTS.prepare(house, "--stages", 2, layers=LAYERS)
        names = [house.submit(job) for job in SUBJECTS.jobs()]
        start_workers(house, workers, "--transport", transport)
        places = list(range(workers))  # of each worker, which names its device
        counts = {"killed": 0, "stopped": 0}
        end = time.monotonic() + STORM_SECONDS
        while time.monotonic() < end:
            time.sleep(generator.uniform(1, 6))
            what = generator.choice(["killed", "killed", "stopped"])
            counts[what] += 1
            number = generator.randrange(len(house.workers))
            worker = house.workers[number]
            if what == "stopped":
                os.kill(worker.pid, signal.SIGSTOP)
                time.sleep(generator.choice([0.3, 1.5 * LEASE_S]))
                os.kill(worker.pid, signal.SIGCONT)
            else:
                worker.kill()
                worker.wait()
                house.workers.pop(number)
                places.append(places.pop(number))  # as house.workers
                start_worker(house, f"k{counts['killed']}", places[-1], "--transport", transport)
        live = sum(job["state"] != "SUCCEEDED" for job in house.objects("ls"))
        house.wait(names, seconds=300)
        steps_done_twice_alike(house, names)
        SUBJECTS.compare(f"{TRANSPORTS[transport]}, workers killed {counts['killed']} times, stopped {counts['stopped']}, {live} jobs outlived it",
                         outcome(house, names), want)
    house.clear()


if __name__ == "__main__":
    tell(f"seed {SEED}, {STEPS} steps, on {', '.join(DEVICES)}")
    main([test_bytes_of_one_worker, test_goldens, test_storm], lacking=lacking())
