"""What tests of jobs on several workers share: stages_test.py on CPUs, gpu_stages_test.py on GPUs.

`start(house, name, place)` starts a worker of that name; places count from 0 and say which device it has.
"""

import os
import signal
import time

from house import Failure, House, tell
from isolation import outcome, steps_done_twice_alike

LAYERS = 4
HOUSE = ("--workers", "none", "--microbatch-tokens", 1024)


def start_workers(house, start, count):
    for place in range(count):
        start(house, f"w{place}", place)


def groups(house):
    """Of each how many workers it has."""
    return [len(group["workers"]) for group in house.object("cluster")["groups"]]


def live(house):
    return sum(job["state"] != "SUCCEEDED" for job in house.objects("ls"))


def until(predicate, what, seconds=120):
    end = time.monotonic() + seconds
    while not (found := predicate()):
        if time.monotonic() > end:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(0.05)
    return found


_outcomes = {}


def on_one_worker(subjects, start):
    """The outcome of the jobs on one worker, once for all tests."""
    if subjects not in _outcomes:
        with House(None, *HOUSE) as house:
            subjects.prepare(house, layers=LAYERS)
            names = [house.submit(job) for job in subjects.jobs()]
            start_workers(house, start, 1)
            house.wait(names)
            _outcomes[subjects] = outcome(house, names)
        house.clear()
    return _outcomes[subjects]


def on_stages(subjects, start, stages, log=None):
    """The jobs on so many workers have the outcome of one; `log` is in the daemon's."""
    want = on_one_worker(subjects, start)
    with House(None, *HOUSE) as house:
        subjects.prepare(house, "--stages", stages, layers=LAYERS)
        names = [house.submit(job) for job in subjects.jobs()]
        start_workers(house, start, stages)
        until(lambda: groups(house) == [stages], f"a group of {stages} workers")
        began = time.monotonic()
        house.wait(names)
        assert log is None or log in house.log(), f"nobody says: {log}"
        subjects.compare(f"{stages} stages, {log or 'as they are'} ({time.monotonic() - began:.0f} s)", outcome(house, names), want)
    house.clear()


def storm(subjects, start, workers, seconds, generator, lease_s, calamities=("killed", "killed", "stopped")):
    """SIGKILL and SIGSTOP of random workers, and of the coordinator where `calamities` has "coordinator"; whoever is gone
    is started again. Jobs on two stages are to outlive it."""
    want = on_one_worker(subjects, start)
    with House(None, *HOUSE, "--lease", lease_s) as house:
        subjects.prepare(house, "--stages", 2, layers=LAYERS)
        names = [house.submit(job) for job in subjects.jobs()]
        start_workers(house, start, workers)
        places = list(range(workers))  # as house.workers
        counts = dict.fromkeys(calamities, 0)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(generator.uniform(0.2, lease_s))
            if not live(house):
                raise Failure("all jobs ended before the storm did: more steps= are needed, or fewer seconds=")
            what = generator.choice(calamities)
            counts[what] += 1
            number = generator.randrange(len(house.workers))
            worker = house.workers[number]
            if what == "coordinator":
                house.kill()
                house.start("--listen", house.address)
            elif what == "stopped":
                os.kill(worker.pid, signal.SIGSTOP)
                time.sleep(generator.choice([0.3, 1.5 * lease_s]))
                os.kill(worker.pid, signal.SIGCONT)
            else:
                worker.kill()
                worker.wait()
                house.workers.pop(number)
                places.append(places.pop(number))
                start(house, f"k{counts['killed']}", places[-1])
        outlived = live(house)
        tell(f"    {counts}, and {outlived} jobs of {len(names)} go on")
        if not outlived:
            raise Failure("no job outlived the storm: more steps= are needed, or fewer seconds=")
        house.wait(names, seconds=400)
        steps_done_twice_alike(house, names)
        subjects.compare(f"{counts}, {outlived} jobs outlived it", outcome(house, names), want)
        left = [thing for thing in os.listdir("/dev/shm") if "lorad" in thing]
        assert not left, left
    house.clear()
