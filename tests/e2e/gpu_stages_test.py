"""Several workers as one on GPUs, a process each: jobs on 2 and 4 stages end with the bytes of one worker, by peer and
through the host's memory, and by NCCL where the stages have a GPU each, whoever is killed or stopped; the reference
runs. Skips where there are not so many GPUs.

usage: gpu_stages_test.py [TEST ...] [devices=cuda:0,cuda:1] [seed=N] [steps=N] [seconds=N]     seconds: of the storm
       Stages take the devices in turn.
"""

import functools
import random
import subprocess
import sys

import golden
from house import WORKER, House, main, tell
from isolation import Subjects
from staged import HOUSE, LAYERS, joins_within, on_stages, start_workers, storm

OPTIONS = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
DEVICES = OPTIONS.get("devices", "cuda:0").split(",")
SEED = int(OPTIONS.get("seed", random.SystemRandom().randrange(2**31)))
STEPS = int(OPTIONS.get("steps", 20))
STORM_SECONDS = float(OPTIONS.get("seconds", 40))
SUBJECTS = Subjects(SEED, STEPS)
LONG = Subjects(SEED, 100 * STEPS)  # that most storms do not outlive
MEMORY = "6GiB"  # of each worker: several share a GPU
FP32_LOSS_MAX = 1e-4  # relative, from PEFT's in float32 on a CPU
LEASE_S = 5
TRANSPORTS = {"peer": "by peer", "sockets": "through the host's memory"}  # and what is logged of each
JOINS, JOIN_BARS = 3, {"peer": 1, "sockets": 1, "nccl": 3}  # seconds
if len(set(DEVICES)) > 1:  # which takes no GPU twice
    TRANSPORTS["nccl"] = "by NCCL"


def lacking():
    listed = subprocess.run([WORKER, "--list-devices"], capture_output=True, text=True, check=True).stdout
    there = {line.split()[0] for line in listed.splitlines()}
    absent = [device for device in DEVICES if device not in there]
    return f"no {', '.join(absent)} here" if absent else None


def start(house, name, place, *options):
    house.start_worker("--name", name, "--device", DEVICES[place % len(DEVICES)], "--memory", MEMORY, *options)


def by(transport):
    return functools.partial(start_by, transport)


def start_by(transport, house, name, place):
    start(house, name, place, "--transport", transport)


def test_bytes_of_one_worker():
    for stages in (2, 4):
        for transport, logged in TRANSPORTS.items():
            if transport != "nccl" or stages <= len(set(DEVICES)):
                on_stages(SUBJECTS, by(transport), stages, f"reaches stage 1 {logged}")


def in_float32(house, name, place):
    start(house, name, place, "--precision", "fp32")


def test_goldens():
    model, runs = "llama-gqa-untied", golden.RUNS["llama-gqa-untied"]
    for stages in (2, 4):
        with House(None, "--workers", "none") as house:
            house.lora("model", "add", model, "--path", golden.folder_of(model) / "model", "--stages", stages)
            for run in runs:
                house.lora("dataset", "add", golden.name_of(model, run), golden.folder_of(model, run) / "train.jsonl")
                house.lora("adapter", "import", golden.name_of(model, run), "--path", golden.folder_of(model, run) / "init")
            names = [house.submit(golden.job_of(model, run)) for run in runs]
            start_workers(house, in_float32, stages)
            house.wait(names)
            for name, run in zip(names, runs):
                found = golden.differences(house, name, model, run)
                assert found["loss"] < FP32_LOSS_MAX, (stages, run, found)
        house.clear()


def test_time_to_form():
    for transport in TRANSPORTS:
        with House(None, *HOUSE) as house:
            SUBJECTS.prepare(house, "--stages", 2, layers=LAYERS)

            def begin(i):
                for place in range(2):
                    by(transport)(house, f"w{i}-{place}", place)
                return house.submit(SUBJECTS.jobs()[0])

            joins_within(house, transport, JOINS, JOIN_BARS[transport], begin)
        house.clear()


def test_storm():
    """SIGKILL and SIGSTOP of random workers that go by peer, then of such that go by NCCL; whoever is gone is started
    again."""
    for transport, workers in (("peer", 3), ("nccl", 2)):
        if transport in TRANSPORTS:
            storm(LONG, by(transport), workers, STORM_SECONDS, random.Random(SEED + 1), LEASE_S)


if __name__ == "__main__":
    tell(f"seed {SEED}, {STEPS} steps, on {', '.join(DEVICES)}")
    main([test_bytes_of_one_worker, test_goldens, test_time_to_form, test_storm], lacking=lacking())
