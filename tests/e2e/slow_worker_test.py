"""Two real workers of one kind, of which one is held up by SIGSTOP for most of each tenth of a second: jobs leave it, and come back.

usage: slow_worker_test.py [TEST...]
"""

import signal
import threading
import time

from house import House, main, tell
from placement_test import job, moves_of, prepare, split, wait_for, wait_for_workers

JOBS = 12
CYCLE_S = 0.09
RUNS_S = 0.03  # of it


class Throttle:
    """Holds up a process while it is on; used with `with`."""

    def __init__(self, process):
        self.process, self.ends = process, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.ends.is_set():
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(CYCLE_S - RUNS_S)
            self.process.send_signal(signal.SIGCONT)
            time.sleep(RUNS_S)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


def speeds(house):
    return {worker["name"]: worker["relative_speed"] for worker in house.objects("worker", "ls")}


def jobs_on(house, name):
    (group,) = [group for group in house.object("cluster")["groups"] if group["stages"][0]["worker"] == name]
    return len(group["jobs"])


def even(house):
    return split(house) == [JOBS // 2, JOBS // 2] and speeds(house) == {"fast": 1, "slow": 1}


def test_jobs_leave_a_slow_worker_and_come_back():
    with House(None, "--workers", "none", "--minimum-run", "5") as house:
        prepare(house)
        workers = {name: house.start_worker("--name", name, "--threads", "1") for name in ("fast", "slow")}
        wait_for_workers(house, 2)
        names = [house.submit(job(steps=1000000, seed=seed)) for seed in range(JOBS)]
        wait_for(house, "an even split", 20, lambda: even(house))
        time.sleep(8)  # both have been measured
        wait_for(house, "no worker is slow", 20, lambda: even(house))

        with Throttle(workers["slow"]):
            began = time.monotonic()
            wait_for(house, "fewer jobs on the slow worker", 30, lambda: jobs_on(house, "slow") <= JOBS // 3)
            tell(f"    {jobs_on(house, 'slow')} jobs are left on it after {time.monotonic() - began:.1f} s: {speeds(house)}")
            assert speeds(house)["fast"] == 1, speeds(house)
            assert 0.1 < speeds(house)["slow"] < 0.8, speeds(house)
            assert "x the speed of its kind" in house.lora("worker", "ls").out

        began = time.monotonic()
        wait_for(house, "its share for the worker that has recovered", 40, lambda: even(house))
        tell(f"    its share after {time.monotonic() - began:.1f} s, and moves by job {moves_of(house, names)}")
    house.clear()


if __name__ == "__main__":
    main([test_jobs_leave_a_slow_worker_and_come_back])
