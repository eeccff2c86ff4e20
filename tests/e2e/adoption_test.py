"""SIGKILL of the coordinator in the midst of jobs on one worker, two and three stages, again and again: the next one finds the
group with its workers, loads no model, repeats no step, and the bytes are those of an undisturbed run.

usage: adoption_test.py [TEST...] [seed=N] [steps=N] [kills=N]
"""

import functools
import random
import re
import signal
import sys
import time

from house import Failure, House, main, tell
from isolation import Subjects, outcome
from staged import HOUSE, LAYERS, until

OPTIONS = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
SEED = int(OPTIONS.get("seed", random.SystemRandom().randrange(2**31)))
STEPS = int(OPTIONS.get("steps", 400))
KILLS = int(OPTIONS.get("kills", 3))
SUBJECTS = Subjects(SEED, STEPS)


def jobs_of_test():
    """Without checkpoints on the way: whoever fell back would begin again."""
    jobs = SUBJECTS.jobs()[:3]
    for job in jobs:
        job["training"]["checkpoint_every_steps"] = 0
        job["training"]["eval_every_steps"] = 20
    return jobs


def start_workers(house, count):
    for i in range(count):
        house.start_worker("--name", f"w{i}", "--threads", "1")


@functools.cache
def undisturbed():
    with House(None, *HOUSE) as house:
        SUBJECTS.prepare(house, layers=LAYERS)
        names = [house.submit(job) for job in jobs_of_test()]
        start_workers(house, 1)
        house.wait(names)
        found = outcome(house, names)
    house.clear()
    return found


def compare(what, got, want):
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        assert one[1] == other[1], f"{what}: job {number}: other steps"
        assert one[2] == other[2], f"{what}: job {number}: evaluations {one[2]}, undisturbed {other[2]}"
        assert one[0] == other[0], f"{what}: job {number}: the adapter's bytes differ"


def steps(house, names):
    return sum(house.object("show", name)["step"] for name in names)


def disturb(house, names, generator):
    """One death of the coordinator; the seconds from its next start to the first new step."""
    goal = steps(house, names) + generator.randrange(1, STEPS // 8)
    until(lambda: steps(house, names) >= goal, f"step {goal}")
    time.sleep(generator.uniform(0, 0.2))
    pids = [worker.pid for worker in house.workers]
    before = steps(house, names)
    house.kill()
    time.sleep(generator.choice([0, 0.5]))
    began = time.monotonic()
    house.start("--listen", house.address)
    assert steps(house, names) >= before, "a step that was told is gone"
    until(lambda: any(group["adopted"] for group in house.object("cluster")["groups"]), "a group that is adopted")
    known = steps(house, names)
    if known == STEPS * len(names):
        raise Failure(f"all jobs had ended: more steps= than {STEPS} are needed")
    until(lambda: steps(house, names) > known, "a new step")
    assert [worker.pid for worker in house.workers if worker.poll() is None] == pids, "a worker has ended"
    return time.monotonic() - began


def test_killed_again_and_again():
    want = undisturbed()
    for stages in (1, 2, 3):
        generator = random.Random(SEED + stages)
        with House(None, *HOUSE) as house:
            SUBJECTS.prepare(house, *(["--stages", stages] if stages > 1 else []), layers=LAYERS)
            names = [house.submit(job) for job in jobs_of_test()]
            start_workers(house, stages)
            until(lambda: all(house.object("show", name)["step"] > 0 for name in names), "all jobs run")
            (group,) = house.object("cluster")["groups"]
            assert len(group["workers"]) == stages, group
            seconds = [disturb(house, names, generator) for _ in range(KILLS)]
            (now,) = house.object("cluster")["groups"]
            assert now["name"] == group["name"] and now["adopted"], now
            house.wait(names)
            compare(f"{stages} stages", outcome(house, names), want)
            for name in names:
                reasons = [event["reason"] for event in house.objects("events", name)]
                assert reasons.count("GROUP_ADOPTED") == KILLS, reasons
                assert "NUMERICS_MISMATCH" not in reasons, reasons
                assert house.object("show", name)["attempts"] == 1, "it was placed again"
            formed = house.log().count("forming for base model")
            assert formed == 1, f"a model was loaded {formed} times"
            tell(f"    {stages} stages: killed {KILLS} times; first new step after " + ", ".join(f"{s:.2f}" for s in seconds) + " s")
        house.clear()


def test_workers_that_die_with_it():
    """Started by `lorad serve` itself: the model is loaded again, and the jobs go on from their checkpoints."""
    want = undisturbed()
    with House(None, "--microbatch-tokens", 1024, "--workers", "cpu:1", "--worker-threads", 1) as house:
        SUBJECTS.prepare(house, layers=LAYERS)
        names = [house.submit(job) for job in jobs_of_test()]
        until(lambda: all(house.object("show", name)["step"] > 2 for name in names), "all jobs run")
        house.kill()
        house.start("--listen", house.address)
        house.wait(names)
        compare("workers of its own", outcome(house, names), want)
        assert not any(event["reason"] == "GROUP_ADOPTED" for name in names for event in house.objects("events", name))
    house.clear()


def test_one_stage_does_not_come_back():
    """Killed with its coordinator: the group is given up, and formed again when the worker is there."""
    want = undisturbed()
    with House(None, *HOUSE, "--lease", 3) as house:
        SUBJECTS.prepare(house, "--stages", 2, layers=LAYERS)
        names = [house.submit(job) for job in jobs_of_test()]
        start_workers(house, 2)
        until(lambda: all(house.object("show", name)["step"] > 2 for name in names), "all jobs run")
        house.kill()
        worker = house.workers.pop()
        worker.kill()
        worker.wait()
        house.start("--listen", house.address)
        until(lambda: all(house.object("show", name)["state"] == "QUEUED" for name in names), "the group is given up")
        house.start_worker("--name", "w1", "--threads", "1")
        house.wait(names)
        compare("a stage that died", outcome(house, names), want)
        assert not any(event["reason"] == "GROUP_ADOPTED" for name in names for event in house.objects("events", name))
    house.clear()


def test_another_process_of_the_name():
    """It comes first after a kill of the coordinator, while the worker of the name stands still: it is kept from the name."""
    want = undisturbed()
    with House(None, *HOUSE) as house:
        SUBJECTS.prepare(house, layers=LAYERS)
        names = [house.submit(job) for job in jobs_of_test()]
        start_workers(house, 1)
        until(lambda: all(house.object("show", name)["step"] > 2 for name in names), "all jobs run")
        (first,) = house.workers
        house.kill()
        first.send_signal(signal.SIGSTOP)
        house.start_worker("--name", "w0", "--threads", "1")
        house.start("--listen", house.address)
        until(lambda: house.log().count("WORKER_NAME_TAKEN") >= 2, "the daemon and the second process say so", 20)
        (worker,) = house.objects("worker", "ls")
        assert worker["state"] == "AWAITED" and worker["pid"] == first.pid, worker
        first.send_signal(signal.SIGCONT)
        until(lambda: house.objects("worker", "ls")[0]["state"] == "BUSY", "the first process is back", 20)
        house.wait(names)
        assert house.objects("worker", "ls")[0]["pid"] == first.pid
        compare("beside another process of its name", outcome(house, names), want)
        for name in names:
            assert [event["reason"] for event in house.objects("events", name)].count("GROUP_ADOPTED") == 1, name
        said = f"process {first.pid} on host '.*' had the name 'w0' before the coordinator was started"
        assert re.search(f"refused worker 'w0' at .*: WORKER_NAME_TAKEN: {said}", house.log()), "the daemon does not say so"
        own = [line for line in house.log().splitlines() if re.search(said, line) and "refused worker" not in line]
        assert own, "the second process does not say so"
    house.clear()


if __name__ == "__main__":
    tell(f"seed {SEED}, {STEPS} steps, killed {KILLS} times")
    main([test_killed_again_and_again, test_workers_that_die_with_it, test_one_stage_does_not_come_back,
          test_another_process_of_the_name])
