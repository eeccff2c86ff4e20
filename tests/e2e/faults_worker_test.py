"""A worker that lies: it says what fits nothing, of every kind, in every state. The coordinator closes it and lives; the jobs
of others, and the liar's own jobs, succeed elsewhere. And one that heartbeats but never does what it was asked.

usage: faults_worker_test.py [seed=N] [TEST ...]
"""

import math
import queue
import threading
import time

from faults import add_rows, add_small_model, channel_to, check_stops, grpc, seeded, small_job
from house import Failure, House, main, running_seconds, tell
from lorad.worker.v1 import worker_pb2 as wire
from lorad.worker.v1 import worker_pb2_grpc

CLOSED_SECONDS = 5
# The group of a worker that does nothing is lost after ten times what that should take, and this floor.
PATIENCE_FLOOR_SECONDS = 5
IDLE_LOST_SECONDS = 150


class Liar:
    """A control stream by hand: answers as a worker does until it is told to lie. It is in one of the states
    idle, forming, loading, running."""

    def __init__(self, house, name="liar", until_state="running", threads=1):
        self.messages = queue.Queue()
        self.state, self.epoch, self.number = "idle", 0, 0
        self.jobs, self.steps, self.window, self.save = [], {}, None, None
        self.until_state = until_state
        self.welcomed, self.reached, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.error = None
        self.channel = channel_to(house.address)
        self.stub = worker_pb2_grpc.CoordinatorStub(self.channel)
        self.say(hello=hello(name, threads))
        self.stream = self.stub.Control(iter(self.messages.get, None))
        threading.Thread(target=self.listen, daemon=True).start()
        threading.Thread(target=self.beat, daemon=True).start()

    def say(self, **content):
        self.messages.put(wire.WorkerMessage(**content))

    def report(self, **content):
        self.number += 1
        self.say(report=wire.Report(epoch=self.epoch, number=self.number, **content))

    def beat(self):
        while not self.ended.wait(0.5):
            if self.welcomed.is_set():
                self.say(heartbeat=wire.Heartbeat(epoch=self.epoch, resident_bytes=1 << 28, peak_resident_bytes=1 << 28))

    def reach(self, state):
        self.state = state
        if state == self.until_state:
            self.reached.set()

    def listen(self):
        try:
            for message in self.stream:
                self.obey(message)
        except grpc.RpcError as error:
            self.error = error
        self.ended.set()

    def obey(self, message):
        kind = message.WhichOneof("content")
        if kind == "welcome":
            self.welcomed.set()
            self.reach("idle")
        elif kind == "form_group":
            self.epoch, self.number = message.form_group.epoch, 0
            self.reach("forming")
            if not self.reached.is_set():
                self.report(group_formed=wire.GroupFormed(reserved_bytes=1 << 20, load_seconds=0.01))
        elif kind == "window" and not self.reached.is_set():
            self.window = message.window
            for operation in message.window.operations:
                if operation.kind == wire.Operation.LOAD_SLOT:
                    self.jobs.append(operation.job)
                    self.reach("loading")
                    if self.reached.is_set():
                        return
                    self.report(slot_loaded=wire.SlotLoaded(job=operation.job, step=operation.step, bytes=1 << 16))
            self.reach("running")

    def is_closed(self):
        """Whether it is, or is before long. Any longer, and the coordinator's patience with who does nothing might be over."""
        end = running_seconds() + CLOSED_SECONDS
        while not self.ended.wait(0.02) and running_seconds() < end:
            pass
        return self.ended.is_set()

    def close(self):
        self.messages.put(None)
        self.stream.cancel()
        self.channel.close()


def hello(name, threads=1):
    return wire.Hello(protocol_version=1, worker=name, version="0.1.0", device="cpu", device_name="a liar", memory_bytes=8 << 30,
                      threads=threads, pid=0, numerics_id="lies", value_bytes=4)


NAN, INFINITY = math.nan, math.inf

# What fits nothing: (name, states, what is said). What is said under an epoch that is over is ignored, and no lie.
ALL = ("idle", "forming", "loading", "running")
LIES = [
    ("a second hello", ALL, lambda w, job: w.say(hello=hello("again"))),
    ("nothing", ALL, lambda w, job: w.say()),
    ("an answer to no cut", ALL[1:], lambda w, job: w.say(cut_answer=wire.CutAnswer(epoch=w.epoch, cut=7, first_not_enqueued=-3))),
    ("a heartbeat of negative bytes", ALL, lambda w, job: w.say(heartbeat=wire.Heartbeat(epoch=w.epoch, resident_bytes=-1, peak_resident_bytes=-(1 << 62)))),
    ("an empty report", ALL[1:], lambda w, job: w.report()),
    ("a report out of turn", ALL[1:], lambda w, job: w.say(report=wire.Report(epoch=w.epoch, number=w.number + 5))),
    ("a report of number -1", ALL[1:], lambda w, job: w.say(report=wire.Report(epoch=w.epoch, number=-1, slot_freed=wire.SlotFreed(job=job)))),
    ("a group formed again", ALL[2:], lambda w, job: w.report(group_formed=wire.GroupFormed(reserved_bytes=1))),
    ("a group formed of negative bytes", ("forming",), lambda w, job: w.report(group_formed=wire.GroupFormed(reserved_bytes=-5, load_seconds=NAN))),
    ("a group failed after it was formed", ("running",), lambda w, job: w.report(group_failed=wire.GroupFailed(reason="\xff" * 9, message="x" * 100_000))),
    ("a slot loaded that nobody asked for", ALL[1:], lambda w, job: w.report(slot_loaded=wire.SlotLoaded(job="nobody", step=3))),
    ("a slot loaded twice", ("running",), lambda w, job: w.report(slot_loaded=wire.SlotLoaded(job=job, step=0))),
    ("a slot loaded at step -1", ("loading",), lambda w, job: w.report(slot_loaded=wire.SlotLoaded(job=job, step=-1, bytes=-1))),
    ("a slot failed that nobody asked for", ALL[1:], lambda w, job: w.report(slot_failed=wire.SlotFailed(job="nobody", reason="NO", message="no"))),
    ("a slot freed of a job that runs", ("running",), lambda w, job: w.report(slot_freed=wire.SlotFreed(job=job))),
    ("a slot freed that nobody has", ALL[1:], lambda w, job: w.report(slot_freed=wire.SlotFreed(job="nobody"))),
    ("a step before its time", ALL[1:], lambda w, job: w.report(step_done=wire.StepDone(job=job, step=30, loss=1, tokens=5, trained_tokens=5))),
    ("a step of another job", ALL[1:], lambda w, job: w.report(step_done=wire.StepDone(job="nobody", step=1, loss=1))),
    ("a step of NaN", ("running",), lambda w, job: w.report(step_done=wire.StepDone(job=job, step=1, loss=NAN, grad_norm=INFINITY, learning_rate=NAN, tokens=10, trained_tokens=5))),
    ("a step of negative tokens", ("running",), lambda w, job: w.report(step_done=wire.StepDone(job=job, step=1, loss=1, tokens=-(1 << 62), trained_tokens=-1, step_time_ms=-1))),
    ("a step number beyond all", ("running",), lambda w, job: w.report(step_done=wire.StepDone(job=job, step=(1 << 63) - 1, loss=1))),
    ("an evaluation without sums", ("running",), lambda w, job: w.report(evaluate_done=wire.EvaluateDone(job=job, step=0, sequence=[0, 1, 2]))),
    ("an evaluation of sequences that are not there", ("running",), lambda w, job: w.report(evaluate_done=wire.EvaluateDone(
        job=job, step=0, sequence=[-1, 1 << 60], loss_sum=[NAN, 1], trained_tokens=[-4, 0]))),
    ("an evaluation of another step", ("running",), lambda w, job: w.report(evaluate_done=wire.EvaluateDone(job=job, step=17, sequence=[0], loss_sum=[1], trained_tokens=[1]))),
    ("a microbatch of NaN", ("running",), lambda w, job: w.report(microbatch_done=wire.MicrobatchDone(
        microbatch=0, tokens=-5, squared_lengths=-(1 << 60), forward_ms=NAN, backward_ms=-INFINITY, adapters=-3))),
    ("a microbatch that nobody sent", ALL[1:], lambda w, job: w.report(microbatch_done=wire.MicrobatchDone(microbatch=1 << 60, tokens=5, forward_ms=1, adapters=1))),
    ("a window out of turn", ALL[1:], lambda w, job: w.report(window_done=wire.WindowDone(window=99))),
    ("a window done of which nothing was told", ("running",), lambda w, job: w.report(window_done=wire.WindowDone(window=w.window.number, busy_ms=NAN, idle_ms=-1))),
    ("not finite, of nobody", ALL[1:], lambda w, job: w.report(not_finite=wire.NotFinite(job="nobody", step=1, what="loss"))),
    ("not finite, of sequences that are not there", ("running",), lambda w, job: w.report(not_finite=wire.NotFinite(job=job, step=-1, sequences=[-1, 1 << 60], what="x" * 5000))),
]


def start_liar(house, state, name):
    """In that state, with a job of its own unless it is idle; returns both."""
    job = "" if state == "idle" else house.submit({**small_job(max_steps=30), "validation_dataset": "validation"})
    liar = Liar(house, name, until_state=state)
    if not liar.reached.wait(20):
        raise Failure(f"the liar is {liar.state}, not {state}: {liar.error}")
    return liar, job


def test_a_worker_that_lies():
    """Every lie on a stream of its own. It is closed; its job waits, and can be cancelled; the daemon lives."""
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_rows(house, "rows")
        add_rows(house, "validation", seed=2, count=3)
        problems, lies = [], 0
        for what, states, lie in LIES:
            for state in states:
                liar, job = start_liar(house, state, f"liar-{lies}")  # who lied before is given nothing for a while
                lie(liar, job)
                closed = liar.is_closed()
                lies += 1
                if house.process.poll() is not None:
                    problems.append(f"{what}, {state}: the daemon ended: {house.log().splitlines()[-1][:200]}")
                    house.process = None
                    house.start()
                elif not closed:
                    problems.append(f"{what}, {state}: the worker was not closed")
                shown = house.object("show", job) if job else None
                if shown and shown["state"] == "FAILED":
                    problems.append(f"{what}, {state}: the job FAILED: {shown['error']}")
                cancelled = house.run("cancel", job, seconds=10) if job else None
                liar.close()
                if house.process.poll() is not None:
                    problems.append(f"{what}, {state}: the daemon ended when the job was cancelled: {house.log().splitlines()[-1][:200]}")
                    house.process = None
                    house.start()
                    house.run("cancel", job)
                elif cancelled and cancelled.status != 0:
                    problems.append(f"{what}, {state}: {cancelled.err}")
        for problem in problems:
            tell(f"    {problem}")
        tell(f"    {lies} lies, {len(problems)} problems")
        house.start_worker("--threads", 1)
        house.wait([house.submit(small_job(max_steps=5))], seconds=60)
        assert not problems, f"{len(problems)} of {lies}, the first: {problems[0]}"
    house.clear()


def test_neighbours_of_a_liar():
    """Jobs of one model on an honest worker, and a liar beside it that comes again and again with a lie of a random kind."""
    generator = seeded()
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_small_model(house, "other", seed=4)
        add_rows(house, "rows")
        add_rows(house, "validation", seed=2, count=3)
        house.start_worker("--threads", 1, "--name", "honest")
        jobs = [house.submit(small_job(model=model, max_steps=300)) for model in ("small", "other")]
        pid = house.process.pid
        for _ in range(12):
            liar = Liar(house, until_state=generator.choice(ALL))
            if liar.reached.wait(2):
                what, _, lie = generator.choice(LIES[:4] if liar.state == "idle" else [l for l in LIES if liar.state in l[1]])
                lie(liar, liar.jobs[0] if liar.jobs else "")
            liar.ended.wait(0.3)
            liar.close()
        assert house.process.poll() is None, f"the daemon ended: {house.log()[-1500:]}"
        house.wait(jobs, seconds=120)
        assert house.process.pid == pid
        (known,) = [worker for worker in house.objects("worker", "ls") if worker["name"] == "liar"]
        tell(f"    it lied {known['lies']} times")
    house.clear()


def test_a_name_that_is_taken():
    """Of two workers of one name the living one stays, and its job with it."""
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_rows(house, "rows")
        house.start_worker("--threads", 1, "--name", "liar")
        job = house.submit(small_job(max_steps=400))
        house.wait([job], until=lambda job: job["step"] > 3)
        second = Liar(house, until_state="forming")
        assert second.is_closed(), "a second worker of the name was taken"
        tell(f"    the second: {second.error and second.error.details()[:150]}")
        (done,) = house.wait([job], seconds=60)
        assert done["attempts"] == 1, "the living worker lost its job"
    house.clear()


def never_answers(state):
    """A worker that gets that far, and from there on only heartbeats; another one is there."""
    with House(None, "--workers", "none", "--patience-floor", PATIENCE_FLOOR_SECONDS) as house:
        add_small_model(house)
        add_rows(house, "rows")
        liar, job = start_liar_of(house, state)
        house.start_worker("--threads", 1, "--name", "honest")
        began = time.monotonic()
        house.wait([job], seconds=IDLE_LOST_SECONDS)
        tell(f"    the job of a worker that stays {state} succeeded elsewhere after {time.monotonic() - began:.0f} s")
        liar.close()
        check_stops(house, 60)
    house.clear()


def start_liar_of(house, state):
    job = house.submit(small_job(max_steps=5))
    liar = Liar(house, until_state=state)
    assert liar.reached.wait(20), liar.state
    return liar, job


def test_a_group_that_never_forms():
    never_answers("forming")


def test_a_window_without_a_report():
    never_answers("running")


if __name__ == "__main__":
    main([test_a_worker_that_lies, test_neighbours_of_a_liar, test_a_name_that_is_taken, test_a_group_that_never_forms,
          test_a_window_without_a_report])
