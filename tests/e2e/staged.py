"""What tests of jobs on several workers share: stages_test.py on CPUs, gpu_stages_test.py on GPUs.

`start(house, name, place)` starts a worker of that name; places count from 0 and say which device it has.
"""

import os
import re
import signal
import statistics
import time

from house import LIVE_STATES, Failure, House, tell
from isolation import outcome, steps_done_twice_alike

LAYERS = 4
HOUSE = ("--workers", "none", "--microbatch-tokens", 1024)
STRIKES = 3  # of a storm, at least, that jobs meet


def start_workers(house, start, count):
    for place in range(count):
        start(house, f"w{place}", place)


def groups(house):
    """Of each how many workers it has."""
    return [len(group["workers"]) for group in house.object("cluster")["groups"]]


def until(predicate, what, seconds=120):
    end = time.monotonic() + seconds
    while not (found := predicate()):
        if time.monotonic() > end:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(0.05)
    return found


def joins_within(house, what, times, bar, begin):
    """What joining costs beyond loading: from the last stage's GroupFormed to the last Connected, by what the daemon says,
    so many times; begin(i) starts workers and submits a job to them. The median is within `bar` seconds."""
    found = []
    for i in range(times):
        name = begin(i)
        said = until(lambda: re.findall(r"its stages are connected, the last one after ([\d.e-]+) s", house.log())[i:], "connected stages")
        found.append(float(said[0]))
        house.run("cancel", name)
        house.wait([name], state=None)
        workers = list(house.workers)
        house.end_workers()
        assert all(worker.returncode == 0 for worker in workers), [worker.returncode for worker in workers]
    tell(f"    {what}: joined in {1000 * statistics.median(found):.1f} ms, at most {1000 * max(found):.1f} ms of {len(found)} (bar {bar} s)")
    assert statistics.median(found) < bar, (what, found)


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


class Storm:
    """Jobs that meet strikes: the same ones are submitted again whenever none of them is left, so that it makes no
    difference how fast the machine is."""

    def __init__(self, house, subjects):
        self.house, self.subjects = house, subjects
        self.rounds = []
        self.met = 0
        self.go_on()

    def live(self):
        return sum(job["state"] in LIVE_STATES for job in self.house.objects("ls") if job["name"] in self.rounds[-1])

    def go_on(self):
        if not self.rounds or not self.live():
            self.rounds.append([self.house.submit(job) for job in self.subjects.jobs()])

    def strikes(self, seconds, pause):
        """For so many seconds, and until jobs have met enough of them; pause() is how long to wait before each."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.met < STRIKES:
            self.go_on()
            time.sleep(pause())
            self.met += bool(self.live())
            yield

    def subsides(self, said, want, check):
        """check(names) waits for the jobs of a round, which then have the outcome `want`."""
        tell(f"    {said}; jobs met {self.met} of them")
        for number, names in enumerate(self.rounds, start=1):
            check(names)
            steps_done_twice_alike(self.house, names)
            self.subjects.compare(f"round {number} of {len(self.rounds)}", outcome(self.house, names), want)


def storm(subjects, start, workers, seconds, generator, lease_s, calamities=("killed", "killed", "stopped")):
    """SIGKILL and SIGSTOP of random workers, and of the coordinator where `calamities` has "coordinator"; whoever is gone
    is started again. Jobs on two stages end as on one worker."""
    want = on_one_worker(subjects, start)
    with House(None, *HOUSE, "--lease", lease_s) as house:
        subjects.prepare(house, "--stages", 2, layers=LAYERS)
        jobs = Storm(house, subjects)
        start_workers(house, start, workers)
        places = list(range(workers))  # as house.workers
        counts = dict.fromkeys(calamities, 0)
        for _ in jobs.strikes(seconds, lambda: generator.uniform(0.2, lease_s / 2)):
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
        jobs.subsides(counts, want, lambda names: house.wait(names, seconds=400))
        left = [thing for thing in os.listdir("/dev/shm") if "lorad" in thing]
        assert not left, left
    house.clear()
