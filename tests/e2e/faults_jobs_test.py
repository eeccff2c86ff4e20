"""One job's trouble is its own: a cancelled one whose checkpoint is on its way up, one whose dataset is gone, one that kills
its worker. And what passes fails none: models that are away for a while, workers that stand still.

usage: faults_jobs_test.py [TEST ...]
"""

import json
import os
import re
import signal
import threading
import time

from faults import Proxy, add_rows, add_small_model, channel_to, check_no_job_failed, check_stops, hanging, seeded, small_job, step_of, until, workers_of
from formats import write_model
from house import AWAY_STATES, House, main, running_seconds, tell
from lorad.v1 import jobs_pb2, jobs_pb2_grpc

MODELS_AWAY_SECONDS = 20
CANCELLED_DATASET_BYTES = 60 << 20
LARGE_JOBS = 256
DAMAGED_STEPS = 3000  # that damages come in time
CUT_MODELS = ("one", "two")
CUT_JOBS = 12
SMALL_WORKER_BYTES = 24 << 20
KILLS_SECONDS = 30


def cancel_in_mid_upload(word):
    """Two jobs that save every step; one is cancelled while what the worker says on one of its connections is held back."""
    generator = seeded()
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_rows(house, "rows")
        victim = house.submit(small_job(max_steps=4000, checkpoint_every_steps=1))
        neighbour = house.submit(small_job(max_steps=60, checkpoint_every_steps=1))
        proxy = Proxy(house.address)
        house.address, direct = proxy.address, house.address
        house.start_worker("--threads", 1)
        house.address = direct
        until(lambda: step_of(house, victim) > generator.randrange(3, 9), 30, "the first steps")
        with proxy.holding(word):
            time.sleep(generator.uniform(0.3, 0.8))
            house.lora("cancel", victim, seconds=10)
            time.sleep(generator.uniform(0, 0.3))
        house.wait([neighbour], seconds=60)
        house.wait([victim], state="CANCELLED", seconds=30)
        other = house.submit(small_job(max_steps=4000, checkpoint_every_steps=1))
        until(lambda: step_of(house, other) > 3, 30, "steps of a job that came later")
        check_stops(house, 15)
        proxy.close()
    house.clear()


def test_cancelled_while_its_steps_are_not_told_yet():
    """Its shard overtakes the report of its step, and the cancellation comes between them."""
    cancel_in_mid_upload(b"/Control")


def test_cancelled_while_its_checkpoint_is_on_its_way_up():
    cancel_in_mid_upload(b"/UploadShard")


def test_a_dataset_that_is_gone_is_the_trouble_of_its_job_alone():
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_rows(house, "rows")
        before = set((house.data_dir / "datasets").rglob("*"))
        add_rows(house, "gone", seed=2)
        (file,) = [path for path in set((house.data_dir / "datasets").rglob("*")) - before if path.is_file()]
        victim, neighbour = house.submit(small_job("gone")), house.submit(small_job())
        house.wait([victim, neighbour], until=lambda job: job["state"] == "QUEUED")
        house.stop()
        file.unlink()
        for cache in (house.data_dir / "cache").iterdir():
            cache.unlink()
        house.start()
        house.start_worker("--threads", 1)
        house.wait([neighbour], seconds=60)
        (lost,) = house.wait([victim], until=lambda job: job["state"] in ("FAILED", "QUEUED"), seconds=30)
        tell(f"    the other is {lost['state']}: {(lost['error'] or {}).get('message') or (lost['queue'] or {}).get('why')}")
        said = str(lost["error"]) + str(lost["queue"])
        assert "gone" in said or file.name in said, f"what it says does not name the dataset: {said}"
    house.clear()


def test_models_that_are_not_mounted_yet():
    """The daemon starts before the models' share does."""
    with House(None, "--workers", "cpu:1") as house:
        add_small_model(house)
        add_small_model(house, "waiting", seed=3)
        add_rows(house, "rows")
        jobs = [house.submit(small_job(max_steps=600)), house.submit(small_job(model="waiting"))]
        until(lambda: step_of(house, jobs[0]) > 5, 30, "the first steps")
        house.kill()
        for model in house.folder.glob("model-*"):
            model.rename(house.folder / f"away-{model.name}")
        house.start()
        deadline = time.monotonic() + MODELS_AWAY_SECONDS
        while time.monotonic() < deadline:
            check_no_job_failed(house)
            time.sleep(0.5)
        whys = [(house.object("show", job)["queue"] or {}).get("why") for job in jobs]
        tell(f"    meanwhile they wait: {whys}")
        for model in list(house.folder.glob("away-*")):
            model.rename(house.folder / model.name.removeprefix("away-"))
        house.wait(jobs, seconds=120)
    house.clear()


def test_a_worker_that_stands_still_while_it_forms_its_group():
    """Its jobs go on at the other worker, and it is welcome again."""
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_small_model(house, "large", hidden=128, layers=8, ffn=512)
        add_rows(house, "rows")
        first = house.start_worker("--threads", 1, "--name", "first")
        until(lambda: workers_of(house), 60, "the worker")
        house.wait([house.submit(small_job())])
        # The worker is stopped from the moment when it is to form another group.
        first.send_signal(signal.SIGSTOP)
        try:
            job = house.submit(small_job("rows", "large", max_steps=5))
            house.wait([job], until=lambda job: job["state"] == "PREPARING", seconds=30)
            house.start_worker("--threads", 1, "--name", "second")
            house.wait([job], seconds=120)
        finally:
            first.send_signal(signal.SIGCONT)
        check_no_job_failed(house)
        until(lambda: set(workers_of(house)) == {"first", "second"}, 60, "both workers there again")
    house.clear()


def test_sigterm_while_a_model_loads_from_a_share_that_hangs():
    """The worker's engine stands in the kernel for ever; it ends all the same, and so does the daemon."""
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_rows(house, "rows")
        job = house.submit(small_job())
        house.wait([job], until=lambda job: job["state"] == "QUEUED")
        (weights,) = [path for path in house.folder.rglob("*.safetensors") if "model-small" in str(path)]
        for name, end in (("first", lambda worker: worker.terminate()), ("second", lambda worker: house.stop(60))):
            worker = house.start_worker("--threads", 1, "--name", name)
            with hanging(weights):
                house.wait([job], until=lambda job: job["state"] == "PREPARING" and job["group"], seconds=30)
                time.sleep(1)
                began = time.monotonic()
                end(worker)
                worker.wait(20)
                tell(f"    the {name} worker ended in {time.monotonic() - began:.1f} s")
    house.clear()


class Poison(threading.Thread):
    """Kills the worker whenever the job is being trained there, and starts another."""

    def __init__(self, house, job):
        super().__init__(daemon=True)
        self.house, self.job = house, job
        self.kills = 0
        self.stopping = threading.Event()

    def run(self):
        while not self.stopping.wait(0.02):
            if self.house.workers[-1].poll() is not None:
                self.house.start_worker("--threads", 2)
            shown = self.house.run("show", self.job, "--json")
            if shown.status == 0 and shown.objects()[0]["state"] == "RUNNING":
                self.house.workers[-1].kill()
                self.house.workers[-1].wait()
                self.kills += 1
                until(lambda: not self.house.worker_pids() or self.stopping.is_set(), 60, "the loss to be noticed")


def test_a_job_that_kills_its_worker_fails_alone():
    """With five others that were there from the beginning."""
    generator = seeded()
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_rows(house, "rows", count=300, longest=500)
        # A step of it takes long enough that its worker dies before it is done.
        jobs = [("poison", small_job(batch_size=256, max_steps=20))] + [(f"n{i}", small_job(max_steps=8 + i)) for i in range(5)]
        generator.shuffle(jobs)
        names = {name: house.submit(job) for name, job in jobs}
        house.start_worker("--threads", 2)
        poison = Poison(house, names["poison"])
        poison.start()
        try:
            (failed,) = house.wait([names["poison"]], state="FAILED", seconds=240)
        finally:
            poison.stopping.set()
            poison.join(15)
        tell(f"    after {poison.kills} losses: {failed['error']}")
        assert failed["error"]["category"] == "SERVER", failed["error"]
        if house.workers[-1].poll() is not None:
            house.start_worker("--threads", 2)
        house.wait([job for name, job in names.items() if name != "poison"], seconds=120)
    house.clear()


def test_whoever_kills_workers_from_outside_for_a_while_fails_no_job():
    """A job alone with its worker, which is killed as soon as the job runs, for longer than five such losses used to take."""
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_rows(house, "rows", count=300, longest=500)
        job = house.submit(small_job(batch_size=256, max_steps=2))
        house.start_worker("--threads", 2)
        poison = Poison(house, job)
        poison.start()
        time.sleep(KILLS_SECONDS)
        poison.stopping.set()
        poison.join(15)
        tell(f"    {poison.kills} losses; it waits: {(house.object('show', job)['queue'] or {}).get('why')}")
        assert poison.kills >= 2, "nothing was lost"
        if house.workers[-1].poll() is not None:
            house.start_worker("--threads", 2)
        house.wait([job], seconds=180)
    house.clear()


def write_large_dataset(path, generator):
    """Rows of words, which take a tokenizer its time."""
    words = ["".join(generator.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(generator.randrange(2, 11))) for _ in range(5000)]
    size = 0
    with open(path, "w") as file:
        while size < CANCELLED_DATASET_BYTES:
            size += file.write('{"text": "%s"}\n' % " ".join(generator.choices(words, k=200)))
    return path


def validated_in(house, dataset):
    """The seconds until a job of that dataset has been validated."""
    began = running_seconds()
    house.wait([house.submit(small_job(dataset))], until=lambda job: job["state"] != "VALIDATING", seconds=240)
    return running_seconds() - began


def test_large_datasets_of_cancelled_jobs_hold_up_nobody():
    generator = seeded()
    with House(None, "--workers", "none") as house:
        house.lora("model", "add", "small", "--path", write_model(house.folder / "model", tokenizer=True))
        house.add_dataset("rows", [{"text": "one row"}])
        for name in ("large-1", "large-2"):
            house.lora("dataset", "add", name, write_large_dataset(house.folder / f"{name}.jsonl", generator))
        cancelled = [house.submit(small_job(name)) for name in ("large-1", "large-2")]
        house.wait(cancelled, until=lambda job: job["state"] == "VALIDATING")
        house.lora("cancel", *cancelled)
        behind, whole = (validated_in(house, name) for name in ("rows", "large-1"))
        tell(f"    VALIDATING for {behind:.1f} s behind two cancelled datasets; one of them takes {whole:.1f} s")
        assert behind < whole / 2, f"a job of one row was VALIDATING for {behind:.1f} s"
    house.clear()


def test_jobs_that_fit_no_worker_hold_up_nobody():
    """Behind as many as the scheduler might look at, one that fits the worker that is idle."""
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_small_model(house, "large", hidden=128, layers=8, ffn=512)
        add_rows(house, "rows")
        stub = jobs_pb2_grpc.JobsStub(channel_to(house.address))
        for i in range(LARGE_JOBS):
            stub.CreateJob(jobs_pb2.CreateJobRequest(job=jobs_pb2.Job(
                base_model="large", training_dataset="rows", adapter={"rank": 8}, training={"max_steps": 5, "max_length": 512})))
        until(lambda: house.object("cluster")["jobs_by_state"].get("QUEUED") == LARGE_JOBS, 30, "all jobs wait")
        house.start_worker("--threads", 1, "--memory", SMALL_WORKER_BYTES)
        house.wait([house.submit(small_job())], seconds=30)
        large = {job["state"] for job in house.objects("ls", "--filter", "base_model = large")}
        assert large == {"QUEUED"}, large
    house.clear()


def seconds_of_estimate(house):
    path = house.folder / "job.json"
    path.write_text(json.dumps(small_job(max_steps=500)))
    estimate = house.run("estimate", "-f", path, "--json")
    return estimate.objects()[0]["seconds"] if estimate.status == 0 else None


def test_an_estimate_asked_for_before_a_worker_came():
    """It says no less of the worker that comes than one that is first asked for then."""
    found = []
    for asked_before in (False, True):
        with House(None, "--workers", "none") as house:
            add_small_model(house)
            add_rows(house, "rows")
            before = seconds_of_estimate(house) if asked_before else None
            house.start_worker("--threads", 2)
            house.wait_for_worker()
            found.append(seconds_of_estimate(house))
            tell(f"    before: {before} s; with a worker of two threads: {found[-1]} s")
            estimate = ("estimate", "-f", house.folder / "job.json")
            assert re.search("^fits +yes$", house.lora(*estimate).out, re.MULTILINE)
            house.end_workers()
            until(lambda: house.objects("worker", "ls")[0]["state"] in AWAY_STATES, 60, "the loss of the worker")
            assert re.search("^fits +yes, but on no worker that is connected$", house.lora(*estimate).out, re.MULTILINE)
        house.clear()
    assert abs(found[0] - found[1]) < 0.01 * found[0], f"{found[1]} s, and asked for with the worker there at first {found[0]} s"


class Cutter(threading.Thread):
    """Cuts files of weights at random moments, and puts them back as they were, with their times."""

    def __init__(self, paths, generator):
        super().__init__(daemon=True)
        self.contents = {path: (path.read_bytes(), path.stat()) for path in paths}
        self.generator = generator
        self.cuts = 0
        self.stopping = threading.Event()

    def run(self):
        while not self.stopping.wait(self.generator.uniform(0, 0.4)):
            path = self.generator.choice(list(self.contents))
            content, status = self.contents[path]
            with open(path, "r+b") as file:
                file.truncate(self.generator.randrange(len(content)))
                self.cuts += 1
                time.sleep(self.generator.uniform(0, 0.03))
                file.write(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_models_that_are_cut_while_they_are_read_cost_a_wait_and_not_a_bit():
    """Groups of two models are formed in turn, while something cuts their files and puts them back: nobody dies of it."""
    generator = seeded()
    with House(None, "--workers", "none") as house:
        for i, name in enumerate(CUT_MODELS):
            add_small_model(house, name, seed=i, hidden=256, layers=8, ffn=512)
        add_rows(house, "rows")
        worker = house.start_worker("--threads", 1)
        undisturbed = [house.submit(small_job(model=name, max_steps=3)) for name in CUT_MODELS]
        house.wait(undisturbed, seconds=60)
        cutter = Cutter([house.folder / f"model-{name}" / "model.safetensors" for name in CUT_MODELS], generator)
        cutter.start()
        try:
            victims = []
            for i in range(CUT_JOBS):
                victims.append(house.submit(small_job(model=CUT_MODELS[i % 2], max_steps=3)))
                house.wait(victims[-1:])
                assert worker.poll() is None, f"the worker ended with {worker.returncode}"
            assert cutter.is_alive() and cutter.cuts, "nothing was cut"
        finally:
            cutter.stopping.set()
            cutter.join(15)
        waits = sum("SAFETENSORS_INVALID" in event["message"] or "MODEL_CHANGED" in event["message"]
                    for job in victims for event in house.objects("events", job))
        tell(f"    {cutter.cuts} cuts, for which {CUT_JOBS} jobs waited {waits} times")
        assert house.process.poll() is None, f"the daemon ended with {house.process.returncode}"
        weights = [(house.adapter(job) / "adapter_model.safetensors").read_bytes() for job in undisturbed + victims]
        assert all(got == weights[i % 2] for i, got in enumerate(weights)), "an adapter has other bits"
    house.clear()


def damage(path):
    """One bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_a_damaged_token_cache_costs_a_wait_and_not_a_bit():
    """Of a job that trains: cut, overwritten, another one's in its place. The daemon and its neighbour notice nothing."""
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_rows(house, "rows")
        add_rows(house, "others", seed=2)
        house.start_worker("--threads", 1)
        undisturbed = house.submit(small_job(max_steps=DAMAGED_STEPS))
        house.wait([undisturbed])
        caches = house.data_dir / "cache"
        (cache,) = caches.iterdir()
        good = cache.read_bytes()
        neighbour = house.submit(small_job("others", max_steps=10 * DAMAGED_STEPS))
        until(lambda: step_of(house, neighbour) > 5, 30, "steps of the neighbour")
        (other,) = [path for path in caches.iterdir() if path != cache]
        daemon, before = house.process.pid, workers_of(house)
        victim = house.submit(small_job(max_steps=DAMAGED_STEPS))
        for bad in (good[:100], bytes(len(good)), other.read_bytes()):
            seen = step_of(house, victim)
            until(lambda: step_of(house, victim) > seen, 30, "steps of the victim", pause=0.01)
            cache.write_bytes(bad)  # in place: the daemon has this file open
            until(lambda: house.process.poll() is not None or cache.read_bytes() == good, 30, "the cache is made again")
            assert house.process.poll() is None, f"the daemon ended with {house.process.returncode}"
        house.wait([victim])
        assert (house.process.pid, workers_of(house)) == (daemon, before), "a process was started again"
        waits = [sum("ROWS_NOT_READY" in event["message"] for event in house.objects("events", job)) for job in (victim, neighbour)]
        tell(f"    the job waited {waits[0]} times, its neighbour at step {step_of(house, neighbour)} {waits[1]} times")
        assert waits[0] and not waits[1], waits
        weights = [(house.adapter(job) / "adapter_model.safetensors").read_bytes() for job in (undisturbed, victim)]
        assert weights[0] == weights[1], "the adapter has other bits"
        steps = [row["step"] for row in house.objects("metrics", victim)]
        assert steps == list(range(1, DAMAGED_STEPS + 1)), f"rows of steps {steps}"
    house.clear()


def test_a_damaged_checkpoint_costs_steps_and_not_a_bit():
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_rows(house, "rows")
        house.start_worker("--threads", 1)
        undisturbed = house.submit(small_job(max_steps=DAMAGED_STEPS))
        house.wait([undisturbed])
        victim = house.submit(small_job(max_steps=DAMAGED_STEPS))
        until(lambda: house.object("show", victim)["last_checkpoint_step"] >= 10, 60, "a second checkpoint", pause=0.01)
        house.kill()
        house.workers[0].kill()
        house.start()
        newest = house.object("show", victim)["last_checkpoint_step"]
        for name in ("adapter_model.safetensors", "optimizer.safetensors"):
            damage(house.data_dir / "checkpoints" / victim / str(newest) / name)
        house.start_worker("--threads", 1)
        house.wait([victim])
        said = [event["message"] for event in house.objects("events", victim) if event["reason"] == "CHECKPOINT_CORRUPT"]
        assert len(said) == 1 and f"goes on from step {newest - 5}" in said[0], said
        weights = [(house.adapter(job) / "adapter_model.safetensors").read_bytes() for job in (undisturbed, victim)]
        assert weights[0] == weights[1], "the adapter has other bits"
        steps = [row["step"] for row in house.objects("metrics", victim)]
        assert steps == list(range(1, DAMAGED_STEPS + 1)), f"rows of steps {steps}"

        # What another job starts from is not taken where it is damaged.
        damage(house.data_dir / "checkpoints" / undisturbed / str(DAMAGED_STEPS) / "adapter_model.safetensors")
        asked = house.folder / "asked.json"
        for step in (f"0{DAMAGED_STEPS}", f"+{DAMAGED_STEPS}", f" {DAMAGED_STEPS}"):  # not as the record has it
            asked.write_text(json.dumps({**small_job(max_steps=3), "adapter": {"rank": 4, "init_from": f"{undisturbed}/{step}"}}))
            wrong = house.run("submit", "-f", asked)
            assert wrong.status == 1 and "adapter.init_from" in wrong.err, wrong
        heir = house.submit({**small_job(max_steps=3), "adapter": {"rank": 4, "init_from": f"{undisturbed}/{DAMAGED_STEPS}"}})
        (heir,) = house.wait([heir], state="FAILED", seconds=60)
        assert heir["error"]["reason"] == "CHECKPOINT_CORRUPT", heir["error"]
    house.clear()


if __name__ == "__main__":
    main([test_cancelled_while_its_steps_are_not_told_yet, test_cancelled_while_its_checkpoint_is_on_its_way_up,
          test_a_dataset_that_is_gone_is_the_trouble_of_its_job_alone, test_models_that_are_not_mounted_yet,
          test_a_worker_that_stands_still_while_it_forms_its_group,
          test_sigterm_while_a_model_loads_from_a_share_that_hangs, test_a_job_that_kills_its_worker_fails_alone,
          test_whoever_kills_workers_from_outside_for_a_while_fails_no_job,
          test_large_datasets_of_cancelled_jobs_hold_up_nobody, test_jobs_that_fit_no_worker_hold_up_nobody,
          test_an_estimate_asked_for_before_a_worker_came, test_a_damaged_token_cache_costs_a_wait_and_not_a_bit,
          test_models_that_are_cut_while_they_are_read_cost_a_wait_and_not_a_bit,
          test_a_damaged_checkpoint_costs_steps_and_not_a_bit])
