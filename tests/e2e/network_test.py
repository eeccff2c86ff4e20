"""Stages on hosts of their own, with a wire between them that is slow, lossy and cut: the bits of one worker, and nobody waits
for longer than a lease and TCP's patience.

usage: network_test.py [TEST...] [seed=N] [seconds=N]     seconds: of the storm
"""

import functools
import random
import sys
import time

from hosts import Site, until
from house import House, main, tell
from isolation import Subjects, outcome, steps_done_twice_alike
from wire import Wire

OPTIONS = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
SEED = int(OPTIONS.get("seed", random.SystemRandom().randrange(2**31)))
STORM_SECONDS = float(OPTIONS.get("seconds", 40))
LAYERS = 4
LEASE_S = 3
TCP_S = 10  # worker/transport: a connection of which nothing is heard for so long is broken
SHORT, LONG = Subjects(SEED, 20), Subjects(SEED, 400)


class SiteOnWire(Site):
    """The daemon, and `lora`, on the wire's first host; stages on the others."""

    def __init__(self, wire, *options):
        super().__init__(wire.hosts[0], "--microbatch-tokens", 1024, *options)
        self.wire = wire
        self.count = 0

    def command(self, *options):
        return [*self.host.prefix, *super().command(*options)]

    def lora_command(self, *arguments):
        return [*self.host.prefix, *super().lora_command(*arguments)]

    def start_on(self, number):
        """A worker on that host, under a name of its own."""
        self.count += 1
        name = f"w{self.count}"
        coordinator, self.host = self.host, self.wire.hosts[number]
        try:
            return self.start_other("--credentials", self.bundle(name), log=f"{name}.log")
        finally:
            self.host = coordinator

    def group(self):
        groups = self.object("cluster")["groups"]
        return groups[0] if groups else {"epoch": 0, "workers": [], "microbatches": 0}


@functools.cache
def one_worker(subjects):
    with House(None, "--workers", "none", "--microbatch-tokens", 1024) as house:
        subjects.prepare(house, layers=LAYERS)
        names = [house.submit(job) for job in subjects.jobs()]
        house.start_worker("--threads", "1")
        house.wait(names)
        found = outcome(house, names)
    house.clear()
    return found


def test_a_slow_and_lossy_wire():
    """Three stages on three hosts: the bits of one worker, whatever the wire does to packets."""
    want = one_worker(SHORT)
    for delay_ms, loss in ((0, 0), (5, 0), (1, 0.01)):
        with Wire(4, delay_ms, loss, SEED) as wire, SiteOnWire(wire) as site:
            SHORT.prepare(site, "--stages", 3, layers=LAYERS)
            names = [site.submit(job) for job in SHORT.jobs()]
            for number in (1, 2, 3):
                site.start_on(number)
            began = time.monotonic()
            site.wait(names)
            hosts = {worker["host"] for worker in site.objects("worker", "ls")}
            SHORT.compare(f"{delay_ms} ms, {100 * loss:g} % lost, {wire.frames} frames ({time.monotonic() - began:.0f} s)",
                          outcome(site, names), want)
            tell(f"    on {len(hosts)} host(s), as workers name them")
        site.clear()


def test_a_cut_between_stages():
    """Both stages still reach the coordinator, and only they not each other: TCP finds it, and the group is formed elsewhere or
    again. Mended, all goes on."""
    with Wire(3, 0.2, 0, SEED) as wire, SiteOnWire(wire, "--lease", LEASE_S) as site:
        LONG.prepare(site, "--stages", 2, layers=LAYERS)
        names = [site.submit(job) for job in LONG.jobs()]
        for number in (1, 2):
            site.start_on(number)
        until(lambda: site.group()["microbatches"] > 5, "the group trains")
        epoch = site.group()["epoch"]
        wire.cut = {wire.between(1, 2)}
        began = time.monotonic()
        until(lambda: site.group()["epoch"] != epoch, "the group of stages that do not reach each other is given up", TCP_S + 2 * LEASE_S)
        tell(f"    given up {time.monotonic() - began:.1f} s after the cut")
        wire.cut = set()
        until(lambda: site.group()["microbatches"] > 5, "a group trains again", 60)
        tell(f"    trains again {time.monotonic() - began:.1f} s after the cut")
        steps_done_twice_alike(site, names)
        for name in names:
            site.run("cancel", name)
    site.clear()


def test_storm_of_cuts():
    """Cuts between any two hosts, the coordinator's too, at odd moments: bits as on one worker."""
    want = one_worker(LONG)
    generator = random.Random(SEED)
    with Wire(4, 0.2, 0, SEED) as wire, SiteOnWire(wire, "--lease", LEASE_S) as site:
        LONG.prepare(site, "--stages", 2, layers=LAYERS)
        names = [site.submit(job) for job in LONG.jobs()]
        for number in (1, 2, 3):
            site.start_on(number)
        until(lambda: site.group()["microbatches"] > 5, "the group trains")
        cuts, end = 0, time.monotonic() + STORM_SECONDS
        while time.monotonic() < end:
            wire.cut = {wire.between(*generator.sample(range(4), 2)) for _ in range(generator.randint(1, 2))}
            cuts += 1
            time.sleep(generator.choice([0.3, 1, 1.5 * LEASE_S, TCP_S + 1]))
            wire.cut = set()
            time.sleep(generator.uniform(0.5, 4))
        live = sum(job["state"] != "SUCCEEDED" for job in site.objects("ls"))
        assert live > 0, "all jobs ended before the storm did"
        site.wait(names, seconds=300)
        steps_done_twice_alike(site, names)
        LONG.compare(f"{cuts} cuts, {live} jobs outlived them", outcome(site, names), want)
    site.clear()


if __name__ == "__main__":
    tell(f"seed {SEED}")
    main([test_a_slow_and_lossy_wire, test_a_cut_between_stages, test_storm_of_cuts])
