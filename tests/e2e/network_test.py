"""Stages on hosts of their own, joined by a wire that is slow, loses frames and is cut (wire.py): jobs end with the bytes of one
worker, and what a cut holds up is given up within a lease. Skipped where no network namespace can be made.

usage: network_test.py [TEST...] [seed=N] [steps=N] [seconds=N] (of the storm)
"""

import collections
import functools
import hashlib
import itertools
import random
import re
import subprocess
import sys
import time

from hosts import Site, until
from house import LIVE_STATES, Failure, House, main, tell
from isolation import Subjects, outcome, steps_done_twice_alike
from staged import Storm
from wire import Wire, between, why_there_are_none

OPTIONS = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
SEED = int(OPTIONS.get("seed", random.SystemRandom().randrange(2**31)))
STEPS = int(OPTIONS.get("steps", 14))
SUBJECTS = Subjects(SEED, STEPS)
LONG = Subjects(SEED, 6 * STEPS)  # that outlive the cuts, on most machines
SECONDS = int(OPTIONS.get("seconds", 10))
SAVED = 7  # steps between two checkpoints, of Subjects
LAYERS = 4
LEASE_S = 3
JOIN_S = LEASE_S  # worker/transport: until all stages are connected, a lease at most
BROKEN_S = 2  # server/core: where a stage has lost another, whether a worker is gone
MARGIN_S = 2  # what a loaded machine is late by, and a tick of the coordinator's
COORDINATOR, FIRST, SECOND, THIRD = range(4)  # places on the wire


class Outrun(Exception):
    """The jobs ended before all had happened to them."""


class SiteOnWire(Site):
    """The daemon, and `lora`, on the wire's first host; its workers on the others."""

    def __init__(self, wire, *options):
        super().__init__(wire.hosts[COORDINATOR], "--microbatch-tokens", 1024, "--lease", LEASE_S, *options)
        self.wire = wire

    def __exit__(self, *raised):
        super().__exit__(*raised)
        if raised[0] is None:
            self.clear()
            assert not self.folder.exists(), f"{self.folder} is left"
        else:
            for path in sorted(self.folder.glob("w*.log")):
                tell(f"--- the end of {path}\n{path.read_text(errors='replace')[-3000:]}\n---")

    def command(self, *options):
        return [*self.host.prefix, *super().command(*options)]

    def lora_command(self, *arguments):
        return [*self.host.prefix, *super().lora_command(*arguments)]

    def start_on(self, place, *options):
        """A worker on that host, w and its place."""
        name, coordinator = f"w{place}", self.host
        bundle = self.folder / f"{name}.pem"
        if not bundle.exists():
            self.bundle(name)
        self.host = self.wire.hosts[place]
        try:
            return self.start_other("--credentials", bundle, *options, log=f"{name}.log")
        finally:
            self.host = coordinator

    def restart(self):
        """The daemon, killed and started again where it was."""
        self.kill()
        self.start("--listen", self.address, "--worker-listen", self.door)

    def group(self):
        groups = self.object("cluster")["groups"]
        return groups[0] if groups else {"epoch": 0, "workers": [], "measured_microbatches": 0}

    def steps(self, names):
        return {job["name"]: job["step"] for job in self.objects("ls") if job["name"] in names}

    def live(self, names):
        return [job["name"] for job in self.objects("ls") if job["name"] in names and job["state"] in LIVE_STATES]

    def outrun(self, names):
        """Whether one of these jobs has ended; it has succeeded."""
        ended = [job for job in self.objects("ls") if job["name"] in names and job["state"] not in LIVE_STATES]
        assert all(job["state"] == "SUCCEEDED" for job in ended), ended
        return bool(ended)

    def trains(self, names, seconds=20, steps=1, before=None):
        """Waits until each of the jobs has done so many steps more; returns the epoch of the group that did them. Outrun: it is
        too late for that."""
        before = before or self.steps(names)

        def did():
            outrun = self.outrun(names)
            if all(step >= before[name] + steps for name, step in self.steps(names).items()):
                return True
            if outrun:
                raise Outrun
            return False
        until(did, "the jobs train", seconds)
        return self.group()["epoch"]

    def cut_and_mend(self, names, link, within_s):
        """Cuts a link until the group is given up, which takes so long at most. Returns how long it took, and how long after the
        mending the jobs train again."""
        epoch = self.group()["epoch"]
        if self.outrun(names):
            raise Outrun
        assert epoch > 0, "no group is there to be cut"
        before = self.steps(names)
        began = time.monotonic()
        self.wire.cut = {link}
        try:
            until(lambda: self.group()["epoch"] != epoch, f"epoch {epoch} is given up", within_s)
        except Failure:
            if self.outrun(names):
                raise Outrun from None  # a group without a job may stand for long
            raise
        took = time.monotonic() - began
        if COORDINATOR in link:
            self.wait_for_worker(1, MARGIN_S)  # the other one is free
        self.wire.cut = frozenset()
        mended = time.monotonic()
        # The kernels try again after pauses that have grown to as long as the cut was. Without steps that are new, another loss would
        # make suspects of the jobs; some were done after `before`.
        self.trains(names, 2 * within_s + MARGIN_S, 4, before)
        return took, time.monotonic() - mended

    def submit_all(self, subjects, stages):
        subjects.prepare(self, "--stages", stages, layers=LAYERS)
        return [self.submit(job) for job in subjects.jobs()]

    def reasons(self, names):
        """How often the jobs' events have which reason."""
        return collections.Counter(event["reason"] for name in names for event in self.objects("events", name))

    def is_told(self, names, said, within_s):
        """Waits until the group is given up because of that, in the words of the jobs' events and of a worker's log."""
        began = time.monotonic()

        def events():
            return [event["message"] for event in self.objects("events", names[0]) if event["reason"] == "STAGE_LOST"]
        until(lambda: any(re.search(said, message) for message in events()), f"the jobs' events say {said}", within_s)
        assert any(re.search(f"STAGE_LOST: {said}", self.worker_log(path.name)) for path in self.folder.glob("w*.log"))
        tell(f"    told after {time.monotonic() - began:.1f} s: {events()[-1]}")

    def wait_for_each_once(self, names):
        """Waits for the jobs; they have each step and each checkpoint once."""
        self.wait(names, seconds=120)
        for name in names:
            for kind, of in (("steps", ["metrics", name]), ("checkpoints", ["checkpoint", "ls", name])):
                numbers = [one["step"] for one in self.objects(*of)]
                assert len(numbers) == len(set(numbers)), f"{name}: {kind} more than once: {numbers}"

    def ends_as_on_one_worker(self, what, names, subjects):
        self.wait_for_each_once(names)
        steps_done_twice_alike(self, names)
        subjects.compare(what, outcome(self, names), one_worker(subjects))


@functools.cache
def one_worker(subjects):
    """The outcome of jobs on one worker, with no wire."""
    with House(None, "--workers", "none", "--microbatch-tokens", 1024) as house:
        subjects.prepare(house, layers=LAYERS)
        names = [house.submit(job) for job in subjects.jobs()]
        house.start_worker("--threads", "1")
        house.wait(names)
        found = outcome(house, names)
    house.clear()
    return found


PEER = """
import hashlib, socket, sys, threading, time
listens, address, size = sys.argv[1] == "listen", sys.argv[2], int(sys.argv[3])
if listens:
    listening = socket.create_server((address, 5000))
    print("listening", flush=True)
    peer = listening.accept()[0]
else:
    peer = socket.create_connection((address, 5000))
began = time.monotonic()
peer.sendall(b"?") if listens else peer.recv(1)
peer.recv(1) if listens else peer.sendall(b"!")
round_trip = time.monotonic() - began
sent = bytes(range(256)) * (size // 256)
sender = threading.Thread(target=lambda: peer.sendall(sent))
sender.start()
came = hashlib.sha256()
left = size
while left > 0:
    piece = peer.recv(1 << 16)
    assert piece, f"{left} bytes are missing"
    came.update(piece)
    left -= len(piece)
sender.join()
print(came.hexdigest(), round_trip, flush=True)
peer.recv(1) if listens else peer.close()
"""


def test_the_wire_itself():
    """Bytes both ways at once arrive as they were sent; delay, loss and cuts are what was asked for."""
    size, delay_ms = 4 << 20, 5
    want = hashlib.sha256(bytes(range(256)) * (size // 256)).hexdigest()
    with Wire(2, delay_ms, 0.01, SEED) as wire:
        def start(host, word):
            command = [*host.prefix, sys.executable, "-c", PEER, word, wire.hosts[0].address, str(size)]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        first = start(wire.hosts[0], "listen")
        assert first.stdout.readline() == "listening\n"
        second = start(wire.hosts[1], "dial")
        said = [peer.communicate(timeout=30)[0].split() for peer in (first, second)]
        assert [digest for digest, _ in said] == [want, want], said
        assert float(said[0][1]) >= 2 * delay_ms / 1e3, f"a round trip of {said[0][1]} s"
        frames = wire.counts["carried"] + wire.counts["lost"]
        assert 0.005 < wire.counts["lost"] / frames < 0.02, wire.counts
        wire.cut = {between(0, 1)}
        connect = [*wire.hosts[1].prefix, sys.executable, "-c",
                   "import socket, sys; socket.create_connection((sys.argv[1], 5000), timeout=1)", wire.hosts[0].address]
        error = subprocess.run(connect, capture_output=True, text=True).stderr
        assert "timed out" in error and wire.counts["cut off"] > 0, error
        wire.cut = frozenset()
        error = subprocess.run(connect, capture_output=True, text=True).stderr
        assert "refused" in error, error  # by a host that is there, where nobody listens any more
        tell(f"    {frames} frames, {wire.counts['lost']} lost; a round trip of {1e3 * float(said[0][1]):.1f} ms")


def test_a_slow_and_lossy_wire():
    """Two and three stages, each on a host of its own: the bytes of one worker."""
    for stages in (2, 3):
        with Wire(1 + stages, 5, 0, SEED) as wire, SiteOnWire(wire) as site:
            names = site.submit_all(SUBJECTS, stages)
            for place in range(1, 1 + stages):
                site.start_on(place)
            site.trains(names)
            wire.delay_ms, wire.loss = 2, 0.01
            began = time.monotonic()
            site.wait(names, seconds=120)
            took = time.monotonic() - began
            (joined,) = re.findall(r"its stages are connected, the last one after (\S+) s", site.log())
            tell(f"    {stages} stages over 5 ms joined in {float(joined):.3f} s")
            assert wire.counts["lost"] > 0, wire.counts
            site.ends_as_on_one_worker(f"{stages} stages, 2 ms, {wire.counts['lost']} of {wire.counts['carried']} frames lost, "
                                       f"{took:.0f} s", names, SUBJECTS)


def test_cuts():
    """Of links in mid-window, one after the other, each mended: the jobs end with the bytes of one worker."""
    for subjects in (LONG, Subjects(SEED, 12 * STEPS), Subjects(SEED, 24 * STEPS)):
        if cut_each(subjects):
            return
        tell(f"    jobs of {subjects.steps} steps ended before the last cut")
    raise Failure("the jobs ended before the last cut, however long they are")


def cut_each(subjects):
    """False: they ended before the last cut."""
    with Wire(3, 0.5, 0, SEED) as wire, SiteOnWire(wire) as site:
        names = site.submit_all(subjects, 2)
        workers = [site.start_on(place) for place in (FIRST, SECOND)]
        try:
            cut_one_by_one(wire, site, names)
        except Outrun:
            return False
        assert sorted(site.alive()) == ["w1", "w2"] and all(worker.poll() is None for worker in workers), site.alive()
        site.ends_as_on_one_worker("cut between any two", names, subjects)
    return True


def cut_one_by_one(wire, site, names):
    # All links for less than a lease: what was on its way is sent again, and nobody is given up.
    epoch = site.trains(names)
    wire.cut = {between(COORDINATOR, FIRST), between(COORDINATOR, SECOND), between(FIRST, SECOND)}
    time.sleep(LEASE_S / 4)
    wire.cut = frozenset()
    assert site.trains(names) == epoch and wire.counts["cut off"] > 0, wire.counts

    # From here on the jobs have checkpoints, of both stages, to go on from.
    site.trains(names, steps=SAVED + 1)

    # One stage from the coordinator, which gives the group up after a lease, and frees the other.
    for place in (FIRST, SECOND):
        took, mended = site.cut_and_mend(names, between(COORDINATOR, place), LEASE_S + MARGIN_S)
        tell(f"    step {min(site.steps(names).values())}: w{place} is cut from the coordinator: given up after {took:.1f} s, trains {mended:.1f} s after it was mended")
        assert "it was silent for 3 s" in site.log(), site.log()

    # The stages from each other. Their kernels find it, and both say so.
    took, mended = site.cut_and_mend(names, between(FIRST, SECOND), LEASE_S + MARGIN_S)
    tell(f"    step {min(site.steps(names).values())}: w1 and w2 are cut from each other: given up after {took:.1f} s, trains {mended:.1f} s after it was mended")
    assert min(site.steps(names).values()) > SAVED, site.steps(names)
    assert all(site.reasons([name])["STAGE_LOST"] for name in site.live(names)), site.reasons(names)
    assert all("STAGE_LOST" in site.worker_log(f"w{place}.log") for place in (FIRST, SECOND))


def test_a_stage_that_nobody_can_reach():
    """The endpoint that it gives is on its host, and no way leads there from the others; then one does, and the wire is cut."""
    with Wire(3, 0.5, 0, SEED) as wire, SiteOnWire(wire) as site:
        wire.hosts[FIRST].ip("addr add 10.78.0.1/32 dev wire")
        names = site.submit_all(SUBJECTS, 2)
        first = site.start_on(FIRST, "--stage-address", "10.78.0.1")
        site.start_on(SECOND)
        site.is_told(names, r"stage 0 at 10\.78\.0\.1:\d+: cannot reach 10\.78\.0\.1:\d+: Network is unreachable", BROKEN_S + 3 * MARGIN_S)
        first.terminate()
        assert first.wait(20) == 0
        until(lambda: site.alive() == ["w2"], "w1 has gone", 20)
        wire.cut = {between(FIRST, SECOND)}
        site.start_on(FIRST)
        site.is_told(names, r"stage \d at 10\.77\.0\.\d:\d+: (cannot reach 10\.77\.0\.\d:\d+: (No route to host|Connection timed out)|nothing came in time)",
                     JOIN_S + BROKEN_S + 3 * MARGIN_S)
        wire.cut = frozenset()
        site.ends_as_on_one_worker("after stages that were not reached", names, SUBJECTS)


def test_others_are_taken_for_a_stage_that_nobody_can_reach():
    """Of three workers the first by name cannot be reached: the other two train, while it goes on to be there."""
    with Wire(4, 0.5, 0, SEED) as wire, SiteOnWire(wire) as site:
        wire.hosts[FIRST].ip("addr add 10.78.0.1/32 dev wire")
        began = time.monotonic()
        names = site.submit_all(SUBJECTS, 2)
        site.start_on(FIRST, "--stage-address", "10.78.0.1")
        for place in (SECOND, THIRD):
            site.start_on(place)
        until(lambda: site.group()["workers"] == ["w2", "w3"] and site.group()["measured_microbatches"], "w2 and w3 train", 60)
        tell(f"    the other two train after {time.monotonic() - began:.1f} s")
        site.ends_as_on_one_worker("on the other two", names, SUBJECTS)
        assert "w1" in site.alive(), site.alive()


def test_a_storm():
    """Random links cut for up to more than a lease, and mended; a wire that gets slower and loses more; workers and the
    coordinator killed and started again; jobs that come whenever none is left: all end with the bytes of one worker."""
    generator = random.Random(SEED)
    links = [between(*pair) for pair in itertools.combinations((COORDINATOR, FIRST, SECOND, THIRD), 2)]
    with Wire(4, 0.5, 0, SEED) as wire, SiteOnWire(wire) as site:
        LONG.prepare(site, "--stages", 2, layers=LAYERS)
        jobs = Storm(site, LONG)
        workers = {place: site.start_on(place) for place in (FIRST, SECOND, THIRD)}
        site.trains(jobs.rounds[0])
        counts = collections.Counter()
        for _ in jobs.strikes(SECONDS, lambda: generator.uniform(0, LEASE_S / 2)):
            what = generator.choice(("cuts", "cuts", "cuts", "wires", "workers", "coordinators"))
            counts[what] += 1
            if what == "cuts":
                wire.cut = frozenset(generator.sample(links, generator.randrange(1, len(links) + 1)))
                time.sleep(generator.uniform(0.1, 1.5 * LEASE_S))
                wire.cut = frozenset()
            elif what == "wires":
                wire.delay_ms, wire.loss = generator.choice((0.1, 1, 5, 20)), generator.choice((0, 0.01, 0.03))
            elif what == "workers":
                place = generator.choice(list(workers))
                workers[place].kill()
                workers[place].wait()
                site.workers.remove(workers[place])
                workers[place] = site.start_on(place)
            else:
                site.restart()
        wire.delay_ms, wire.loss = 0.5, 0
        said = f"{dict(counts)}, {wire.counts['cut off']} frames cut off and {wire.counts['lost']} lost"
        jobs.subsides(said, one_worker(LONG), site.wait_for_each_once)


if __name__ == "__main__":
    tell(f"seed {SEED}, {STEPS} steps")
    main([test_the_wire_itself, test_a_slow_and_lossy_wire, test_cuts, test_a_stage_that_nobody_can_reach,
          test_others_are_taken_for_a_stage_that_nobody_can_reach, test_a_storm],
         lacking=why_there_are_none())
