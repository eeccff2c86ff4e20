"""Several workers as one: jobs on 2, 3 and 4 stages end with the bytes of one worker, whoever is killed or stopped, and go on
on another number of stages.

usage: stages_test.py [TEST...] [seed=N] [steps=N] [seconds=N]     seconds: of the storm
"""

import os
import random
import signal
import sys
import time

import golden
from house import Failure, House, main, tell
from isolation import Subjects, outcome, steps_done_twice_alike

OPTIONS = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
SEED = int(OPTIONS.get("seed", random.SystemRandom().randrange(2**31)))
STEPS = int(OPTIONS.get("steps", 30))
STORM_SECONDS = float(OPTIONS.get("seconds", 20))
SUBJECTS = Subjects(SEED, STEPS)
LAYERS = 4
LOSS, MATRIX = 1e-5, 1e-4  # relative, from PEFT's
LEASE_S = 3


def start_workers(house, count, *options):
    for i in range(count):
        house.start_worker("--name", f"w{i}", "--threads", "1", *options)


def groups(house):
    return [len(group["workers"]) for group in house.object("cluster")["groups"]]


def until(predicate, what, seconds=60):
    end = time.monotonic() + seconds
    while not (found := predicate()):
        if time.monotonic() > end:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(0.05)
    return found


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
    for stages in (2, 3, 4):
        with House(None, "--workers", "none", "--microbatch-tokens", 1024) as house:
            SUBJECTS.prepare(house, "--stages", stages, layers=LAYERS)
            names = [house.submit(job) for job in SUBJECTS.jobs()]
            start_workers(house, stages)
            until(lambda: groups(house) == [stages], f"a group of {stages} workers")
            began = time.monotonic()
            house.wait(names)
            SUBJECTS.compare(f"{stages} stages ({time.monotonic() - began:.0f} s)", outcome(house, names), want)
        house.clear()


def test_goldens():
    for stages in (2, 4):
        with House(None, "--workers", "none") as house:
            model, runs = "llama-gqa-untied", golden.RUNS["llama-gqa-untied"]
            house.lora("model", "add", model, "--path", golden.folder_of(model) / "model", "--stages", stages)
            for run in runs:
                house.lora("dataset", "add", golden.name_of(model, run), golden.folder_of(model, run) / "train.jsonl")
                house.lora("adapter", "import", golden.name_of(model, run), "--path", golden.folder_of(model, run) / "init")
            names = [house.submit(golden.job_of(model, run)) for run in runs]
            start_workers(house, stages)
            house.wait(names)
            for name, run in zip(names, runs):
                found = golden.differences(house, name, model, run)
                assert found["loss"] <= LOSS and found["matrix"] <= MATRIX, (stages, run, found)
        house.clear()


def test_a_job_goes_on_on_another_number_of_stages():
    """Stopped on two stages, it goes on alone, and then on three."""
    want = one_worker()
    with House(None, "--workers", "none", "--microbatch-tokens", 1024) as house:
        SUBJECTS.prepare(house, "--stages", 2, layers=LAYERS)
        names = [house.submit(job) for job in SUBJECTS.jobs()]
        start_workers(house, 2)
        for stages, share in ((1, 3), (3, 2)):
            house.wait(names[:1], until=lambda job: job["step"] >= STEPS // share)
            for name in names:
                house.run("pause", name)
            house.wait(names, until=lambda job: job["state"] in ("PAUSED", "SUCCEEDED"))
            house.end_workers()
            house.lora("model", "update", "small", "--stages", stages)
            start_workers(house, 3)
            for name in names:
                house.run("resume", name)
            until(lambda: set(groups(house)) == {stages}, f"groups of {stages} workers")
        house.wait(names)
        SUBJECTS.compare("on 2, 1 and 3 stages", outcome(house, names), want)
    house.clear()


def test_storm():
    """SIGKILL and SIGSTOP of random workers and SIGKILL of the coordinator; whoever is gone is started again."""
    want = one_worker()
    generator = random.Random(SEED + 1)
    with House(None, "--workers", "none", "--microbatch-tokens", 1024, "--lease", LEASE_S) as house:
        SUBJECTS.prepare(house, "--stages", 2, layers=LAYERS)
        names = [house.submit(job) for job in SUBJECTS.jobs()]
        start_workers(house, 3)
        counts = {"killed": 0, "stopped": 0, "coordinator": 0}
        end = time.monotonic() + STORM_SECONDS
        while time.monotonic() < end:
            time.sleep(generator.uniform(0.2, 3))
            what = generator.choice(["killed", "killed", "stopped", "coordinator"])
            counts[what] += 1
            number = generator.randrange(len(house.workers))
            worker = house.workers[number]
            if what == "coordinator":
                house.kill()
                house.start("--listen", house.address)
            elif what == "stopped":
                os.kill(worker.pid, signal.SIGSTOP)
                time.sleep(generator.choice([0.3, 1.5 * LEASE_S]))
                os.kill(worker.pid, signal.SIGCONT)
            else:
                worker.kill()
                worker.wait()
                house.workers.pop(number)
                house.start_worker("--name", f"k{counts['killed']}", "--threads", "1")
        live = sum(job["state"] != "SUCCEEDED" for job in house.objects("ls"))
        house.wait(names, seconds=300)
        steps_done_twice_alike(house, names)
        SUBJECTS.compare(f"workers killed {counts['killed']} times, stopped {counts['stopped']}, coordinator killed "
                         f"{counts['coordinator']}, {live} jobs outlived it", outcome(house, names), want)
        left = [thing for thing in os.listdir("/dev/shm") if "lorad" in thing]
        assert not left, left
    house.clear()


if __name__ == "__main__":
    tell(f"seed {SEED}, {STEPS} steps")
    main([test_bytes_of_one_worker, test_goldens, test_a_job_goes_on_on_another_number_of_stages, test_storm])
