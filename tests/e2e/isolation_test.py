"""The same adapter file, bit for bit, whoever shared the machine: alone, packed, on one thread or two, with microbatches of
other sizes, with company that comes and goes, and killed again and again.

usage: isolation_test.py SEED|random STEPS [DEVICE]     DEVICE: cpu (default) or cuda:I
"""

import os
import random
import signal
import sys
import time

from house import House, tell
from isolation import Subjects, outcome, packing, steps_done_twice_alike, stranger

SEED = random.SystemRandom().randrange(2**31) if sys.argv[1] == "random" else int(sys.argv[1])
STEPS = int(sys.argv[2])
DEVICE = sys.argv[3] if len(sys.argv) > 3 else "cpu"
ONE_WORKER = "cpu:1" if DEVICE == "cpu" else DEVICE

SUBJECTS = Subjects(SEED, STEPS)

KILLS_OF_EACH = 4  # fewer than the attempts without progress that fail a job

def alone():
    with House(None, "--workers", ONE_WORKER, "--worker-threads", 1, "--microbatch-tokens", 1024) as house:
        SUBJECTS.prepare(house)
        names = []
        for job in SUBJECTS.jobs():
            names.append(house.submit(job))
            (done,) = house.wait(names[-1:])
            assert done["adapters_per_microbatch"] == 1
        found = outcome(house, names)
    house.clear()
    return found


def packed():
    """Four jobs in wide microbatches on two threads."""
    with House(None, "--workers", "none", "--microbatch-tokens", 4096) as house:
        SUBJECTS.prepare(house)
        names = [house.submit(job) for job in SUBJECTS.jobs()]
        house.start_worker("--device", DEVICE, "--threads", 2)
        assert packing(house.wait(names)) >= 2, "four jobs must share microbatches"
        found = outcome(house, names)
    house.clear()
    return found


def with_company():
    """Strangers that are there from the start and leave, that come in mid-run, and that are cancelled."""
    with House(None, "--workers", "none", "--microbatch-tokens", 1337) as house:
        SUBJECTS.prepare(house)
        early = house.submit(stranger(STEPS // 4, 16))
        names = [house.submit(job) for job in SUBJECTS.jobs()]
        house.start_worker("--device", DEVICE, "--threads", 2)
        house.wait(names[:1], until=lambda job: job["step"] >= STEPS // 3 or job["state"] == "SUCCEEDED")
        late = house.submit(stranger(10 * STEPS, 32))
        house.wait(names[:1], until=lambda job: job["step"] >= 2 * STEPS // 3 or job["state"] == "SUCCEEDED")
        house.lora("cancel", late)
        packing(house.wait(names))
        house.wait([early])
        house.wait([late], state="CANCELLED")
        found = outcome(house, names)
    house.clear()
    return found


def killed(undisturbed_seconds):
    """SIGKILL to the worker and to the coordinator at random times; whoever is gone is started again. Half of the kills wait
    for a step to be done, the others may meet a start or a group that is being formed. Where the machine has become so much
    quicker that the jobs end before the last kill, they are done again with shorter times between kills."""
    for pause in (undisturbed_seconds / 20, undisturbed_seconds / 60, 0):
        found = killed_every(pause)
        if found is not None:
            return found
        tell(f"    the jobs ended before the last kill, with up to {pause:.2f} s between two")
    raise AssertionError("the jobs ended before the last kill, however close kills are")


def killed_every(pause):
    """With at most so many seconds between kills; None: the jobs ended before the last one."""
    generator = random.Random(SEED + 1)
    order = ["worker", "coordinator"] * KILLS_OF_EACH
    generator.shuffle(order)
    with House(None, "--workers", ONE_WORKER, "--worker-threads", 2, "--microbatch-tokens", 2000) as house:
        SUBJECTS.prepare(house)
        names = [house.submit(job) for job in SUBJECTS.jobs()]
        for number, victim in enumerate(order):
            if number % 2 == 0:
                seen = house.object("show", names[0])["step"]
                house.wait(names[:1], until=lambda job: job["step"] > seen or job["state"] == "SUCCEEDED")
            time.sleep(generator.uniform(0, pause))
            if victim == "coordinator":
                house.kill()
                house.start()
            else:
                kill_worker(house)
        live = sum(job["state"] != "SUCCEEDED" for job in house.objects("ls"))
        packing(house.wait(names, seconds=900))
        attempts = [job["attempts"] for job in house.objects("ls")]
        tell(f"    killed: worker and coordinator {KILLS_OF_EACH} times each, {live} jobs outlived the last; attempts {attempts}")
        steps_done_twice_alike(house, names)
        found = outcome(house, names)
    house.clear()
    return found if live else None


def kill_worker(house, seconds=60):
    """The one worker there is; waits for it while it is being started."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid in house.worker_pids():
            try:
                os.kill(pid, signal.SIGKILL)
                return
            except ProcessLookupError:
                pass  # it is being started again just now
        time.sleep(0.02)
    raise AssertionError("there is no worker to kill")


def main():
    tell(f"seed {SEED}, {STEPS} steps")

    def timed(way, *arguments):
        began = time.monotonic()
        found = way(*arguments)
        return found, time.monotonic() - began
    want, seconds = timed(alone)
    tell(f"    alone, one thread: {seconds:.0f} s")
    got, packed_seconds = timed(packed)
    SUBJECTS.compare(f"packed ({packed_seconds:.0f} s)", got, want)
    got, seconds = timed(with_company)
    SUBJECTS.compare(f"with company ({seconds:.0f} s)", got, want)
    got, seconds = timed(killed, packed_seconds)
    SUBJECTS.compare(f"killed ({seconds:.0f} s)", got, want)


if __name__ == "__main__":
    main()
