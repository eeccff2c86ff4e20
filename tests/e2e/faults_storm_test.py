"""200 clients create, watch, cancel and delete while the coordinator is killed again and again: nothing that was acknowledged
is lost, and nothing is done twice.

usage: faults_storm_test.py [seed=N] [seconds=N]     20 s in tests; by hand, five minutes
"""

import random
import re
import sys
import threading
import time
import uuid

from faults import add_rows, add_small_model, channel_to, grpc, seeded, small_job
from house import Failure, House, main, tell
from lorad.v1 import jobs_pb2, jobs_pb2_grpc

CLIENTS = 200
ANSWERS_KEPT = 10_000  # of creates whose job is gone; older ones are NOT_FOUND (docs/api.md)
GIVEN = [word.removeprefix("seconds=") for word in sys.argv[1:] if word.startswith("seconds=")]
SECONDS = int(GIVEN[0]) if GIVEN else 20
AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED,
         grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
# Of these the first three say that the server is away or full; the last three come of a connection that breaks in mid-answer.


class Client(threading.Thread):
    """Makes jobs, each with a request id that is repeated until it is answered, and does something to each."""

    def __init__(self, number, seed, address, storm):
        super().__init__(daemon=True)
        self.number, self.address, self.storm = number, address, storm
        self.generator = random.Random(seed)
        self.created, self.cancelled, self.deleted = {}, set(), set()  # acknowledged; created: {name: request id}
        self.perhaps_deleted = set()
        self.problems, self.calls, self.repeats = [], 0, 0

    def run(self):
        self.stub = jobs_pb2_grpc.JobsStub(channel_to(self.address))
        actions = [self.create, self.create, self.repeat_create, self.cancel, self.delete, self.watch, self.get]
        while not self.storm.is_set():
            action = self.generator.choice(actions)
            try:
                action()
            except grpc.RpcError as error:
                self.problems.append(f"{action.__name__}: {error.code().name}: {error.details()}")
            self.storm.wait(self.generator.uniform(0, 1))

    def insist(self, call):
        """Until it is answered; None if the storm ends before. Answers: (answer, whether it had to be repeated)."""
        again = False
        while True:
            self.calls += 1
            try:
                return call(), again
            except grpc.RpcError as error:
                if again and error.code() == grpc.StatusCode.NOT_FOUND:
                    return None, again  # the first try had done it
                if error.code() not in AGAIN:
                    raise
            self.repeats += 1
            again = True
            if self.storm.wait(self.generator.uniform(0.05, 0.3)):
                return None, again

    def request(self, request_id):
        job = small_job(max_steps=5)
        return jobs_pb2.CreateJobRequest(request_id=request_id, job=jobs_pb2.Job(
            display_name=request_id, base_model=job["base_model"], training_dataset=job["training_dataset"],
            adapter={"rank": 4}, training={"max_steps": 5, "max_length": 512}))

    def create(self):
        request_id = str(uuid.UUID(int=self.generator.getrandbits(128)))
        answer, _ = self.insist(lambda: self.stub.CreateJob(self.request(request_id), timeout=5))
        if answer:
            self.created[answer.name] = request_id

    def repeat_create(self):
        """What was acknowledged is answered with the same job, even when that is deleted."""
        if not self.created:
            return
        name, request_id = self.generator.choice(list(self.created.items())[-ANSWERS_KEPT // (2 * CLIENTS):])
        answer, _ = self.insist(lambda: self.stub.CreateJob(self.request(request_id), timeout=5))
        if answer and answer.name != name:
            self.problems.append(f"request {request_id} made {name}, and then {answer.name}")

    def one(self):
        names = sorted(set(self.created) - self.deleted - self.perhaps_deleted)
        return self.generator.choice(names) if names else None

    def cancel(self):
        if name := self.one():
            answer, _ = self.insist(lambda: self.stub.CancelJob(jobs_pb2.CancelJobRequest(name=name), timeout=5))
            if answer:
                self.cancelled.add(name)

    def delete(self):
        names = sorted(self.cancelled - self.deleted - self.perhaps_deleted)
        if not names:
            return
        name = self.generator.choice(names)
        answer, again = self.insist(lambda: self.stub.DeleteJob(jobs_pb2.DeleteJobRequest(name=name), timeout=5))
        if answer is not None:
            self.deleted.add(name)
        elif again:
            self.perhaps_deleted.add(name)  # the answer of a first try got lost

    def get(self):
        if name := self.one():
            answer, _ = self.insist(lambda: self.stub.GetJob(jobs_pb2.GetJobRequest(name=name), timeout=5))
            if answer and name in self.cancelled and answer.state != jobs_pb2.Job.CANCELLED:
                self.problems.append(f"{name} was cancelled, and is {jobs_pb2.Job.State.Name(answer.state)}")

    def watch(self):
        """Follows a job for a while, and goes on after a break from where it was: revisions only grow."""
        name = self.one()
        if not name:
            return
        revision, end = 0, time.monotonic() + self.generator.uniform(0.5, 3)
        while time.monotonic() < end and not self.storm.is_set():
            try:
                for change in self.stub.WatchJobs(jobs_pb2.WatchJobsRequest(names=[name], resume_from_revision=revision), timeout=1):
                    if change.revision <= revision:
                        self.problems.append(f"a watch of {name} got revision {change.revision} after {revision}")
                    revision = change.revision
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.OUT_OF_RANGE:
                    revision = 0  # no longer kept: start over
                elif error.code() not in AGAIN:
                    raise
            self.storm.wait(0.1)


def check(house, clients):
    """What is there is what was acknowledged, each once."""
    jobs = {job["name"]: job for job in house.objects("ls")}
    by_request = {}
    for job in jobs.values():
        by_request.setdefault(job["display_name"], []).append(job["name"])
    problems = [f"request {request} was done twice: {names}" for request, names in by_request.items() if len(names) > 1]
    for client in clients:
        problems += [f"client {client.number}: {problem}" for problem in client.problems]
        problems += [f"{name} was acknowledged and is gone"
                     for name in client.created if name not in jobs and name not in client.deleted | client.perhaps_deleted]
        problems += [f"{name} was deleted and is there" for name in client.deleted if name in jobs]
        problems += [f"{name} was cancelled and is {jobs[name]['state']}" for name in client.cancelled
                     if name in jobs and jobs[name]["state"] != "CANCELLED"]
    kinds = {}
    for problem in problems:
        kinds.setdefault(re.sub(r"\d+|job-\w+|[0-9a-f-]{36}", "*", problem), []).append(problem)
    for alike in kinds.values():
        tell(f"    {len(alike)} like: {alike[0]}")
    assert not problems, f"{len(problems)} problems of {len(kinds)} kinds"


def test_nothing_acknowledged_is_lost_or_done_twice():
    generator = seeded()
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_rows(house, "rows")
        storm = threading.Event()
        clients = [Client(number, generator.randrange(2**31), house.address, storm) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        kills, end = 0, time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(generator.uniform(0.2, 3))
            if house.process.poll() is not None:
                raise Failure(f"the daemon ended by itself: {house.log()[-2000:]}")
            house.kill()
            kills += 1
            house.start("--listen", house.address)
        time.sleep(2)
        storm.set()
        for client in clients:
            client.join(30)
        tell(f"    {kills} kills; " + ", ".join(f"{sum(map(count, clients))} {what}" for what, count in (
            ("jobs made", lambda c: len(c.created)), ("cancelled", lambda c: len(c.cancelled)), ("deleted", lambda c: len(c.deleted)),
            ("calls", lambda c: c.calls), ("repeated", lambda c: c.repeats))))
        assert sum(len(client.created) for client in clients) > 0
        check(house, clients)
    house.clear()


if __name__ == "__main__":
    main([test_nothing_acknowledged_is_lost_or_done_twice])
