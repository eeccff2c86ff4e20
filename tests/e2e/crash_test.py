"""The coordinator killed at every one of its effects on the disk in turn: what was acknowledged is there whole, what was not
is there whole or not at all, and everything goes on."""

import concurrent.futures
import hashlib
import json
import os
import random
import shutil
import subprocess
import time

from formats import token_rows, write_model
from house import BINARIES, Failure, House, WORKER, each_below, main, tell

CRASHING_LORAD = BINARIES / "tests/e2e/crashing_lorad"
POINTS_MAX = 2000  # far beyond what any of the scenes has


class CrashingHouse(House):
    """A daemon that dies at the given point."""

    def __init__(self, folder, point, workers):
        super().__init__(folder)
        self.point, self.workers_count = point, workers

    def command(self, *options):
        return [CRASHING_LORAD, self.point, self.data_dir, WORKER, self.workers_count]

    def died(self, within=0.0):
        """Whether the daemon is dead, or is within so many seconds: its connections break before its parent is told."""
        if self.process is None:
            return True
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            return False
        return True


def run_scene(name, prepare, act, check, workers=0):
    """For point = 1, 2, ...: a copy of the prepared data directory, a daemon that dies there, `act`, a sound daemon, `check`.
    `act` returns what was acknowledged; `check` gets it. Ends with the first point that is never reached. Points share
    nothing, so as many run at a time as there are cores."""
    template = House(None, "--workers", "none")
    with template:
        prepare(template)
    cores = os.cpu_count() or 1
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        for first in range(1, POINTS_MAX, cores):
            points = range(first, first + cores)
            survived = list(pool.map(lambda point: run_point(name, template, point, act, check, workers), points))
            if any(survived):
                tell(f"    {name}: killed at {points[survived.index(True)] - 1} points")
                template.clear()
                return
    raise Failure(f"{name}: more than {POINTS_MAX} points")


def run_point(name, template, point, act, check, workers):
    """Whether the daemon never came to that point."""
    folder = template.folder / f"point-{point}"
    folder.mkdir()
    shutil.copytree(template.data_dir, folder / "data")
    house = CrashingHouse(folder, point, workers)
    acknowledged = None
    try:
        house.start()
    except Failure:
        pass  # it died on its way up
    else:
        acknowledged = act(house)
    survived = not house.died() and house.stop() == 0
    if house.process is not None:
        house.kill()
    restarted = time.time()
    with House(folder, "--workers", f"cpu:{workers}" if workers else "none") as sound:
        try:
            check_nothing_left(sound, restarted)
            check(sound, acknowledged)
        except Exception:
            tell(f"    {name}: killed at point {point}, acknowledged: {acknowledged}")
            raise
    shutil.rmtree(folder)
    return survived


def check_nothing_left(house, restarted):
    """No half-written file survives a start; what is younger, or gone as we look, is being written now."""
    half_written = each_below(house.data_dir, lambda path: path.name.endswith((".tmp", ".partial")) and path.stat().st_mtime < restarted and path)
    left = [str(path) for path in half_written if path]
    assert not left, f"left over: {left}"


def acknowledged(result):
    """The command's stdout if it was acknowledged."""
    return result.out.strip() if result.status == 0 else None


def model_of(house):
    path = house.folder.parent / "model"
    return path if path.exists() else write_model(path)


def rows():
    return token_rows(random.Random(1), 12, longest=60)


def prepare_nothing(house):
    write_model(house.folder / "model")
    (house.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))


def prepare_training(house):
    prepare_nothing(house)
    house.lora("model", "add", "small", "--path", house.folder / "model")
    house.lora("dataset", "add", "rows", house.folder / "rows.jsonl")


def a_job(steps=6):
    return {"base_model": "small", "training_dataset": "rows", "adapter": {"rank": 4, "dropout": 0.1},
            "training": {"max_steps": steps, "batch_size": 2, "max_length": 128, "checkpoint_every_steps": 3}}


def test_dataset():
    def act(house):
        return acknowledged(house.run("dataset", "add", "rows", house.folder.parent / "rows.jsonl"))

    def check(house, done):
        path = house.folder.parent / "rows.jsonl"
        found = house.objects("dataset", "ls")
        assert len(found) == 1 or done is None and not found, "an acknowledged dataset is gone"
        if not found:
            house.lora("dataset", "add", "rows", path)
            (one,) = house.objects("dataset", "ls")
        else:
            (one,) = found
        assert one["rows"] == 12 and one["size_bytes"] == path.stat().st_size
        assert one["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        house.lora("model", "add", "small", "--path", model_of(house))
        report = house.objects("dataset", "validate", "--dataset", "rows", "--model", "small")[-1]
        assert report["rows"] == 12 and report["error_count"] == 0
    run_scene("create a dataset", prepare_nothing, act, check)


def test_model_and_job():
    def act(house):
        path = house.folder / "job.json"
        path.write_text(json.dumps(a_job()))
        return (acknowledged(house.run("model", "add", "second", "--path", house.folder.parent / "model")),
                acknowledged(house.run("submit", "-f", path)))

    def check(house, done):
        models = {m["name"] for m in house.objects("model", "ls")}
        jobs = [j["name"] for j in house.objects("ls")]
        model, job = done or (None, None)
        assert "small" in models and (model is None or "second" in models), "an acknowledged model is gone"
        assert job is None or job in jobs, "an acknowledged job is gone"
        assert len(jobs) <= 1
        for name in jobs:
            assert house.object("show", name)["state"] in ("QUEUED", "VALIDATING")
    run_scene("register a model, create a job", prepare_training, act, check)


def test_delete():
    def prepare(house):
        prepare_training(house)
        house.lora("dataset", "add", "spare", house.folder / "rows.jsonl")
        name = house.submit(a_job())
        house.lora("cancel", name)
        house.wait([name], state="CANCELLED")

    def act(house):
        done = {}
        jobs = house.run("ls", "--json")
        for job in jobs.objects() if jobs.status == 0 else []:
            done["job"] = acknowledged(house.run("rm", job["name"]))
        done["dataset"] = acknowledged(house.run("dataset", "rm", "spare"))
        done["model"] = acknowledged(house.run("model", "rm", "small"))
        return done

    def check(house, done):
        left = {"job": house.objects("ls"), "dataset": [d for d in house.objects("dataset", "ls") if d["name"] == "spare"],
                "model": house.objects("model", "ls")}
        for kind, answer in (done or {}).items():
            assert answer is None or not left[kind], f"a deleted {kind} is there again"
        if left["dataset"]:
            house.lora("model", "ls")
            house.lora("dataset", "rm", "spare")
        assert any(d["name"] == "rows" for d in house.objects("dataset", "ls"))
    run_scene("delete", prepare, act, check)


def trained(folder):
    """The adapter that the job gives undisturbed, and its directory."""
    with House(folder, "--workers", "cpu:1", "--worker-threads", 1, data="undisturbed") as house:
        prepare_training(house)
        name = house.submit(a_job())
        house.wait([name])
        adapter = house.adapter(name)
    return adapter


def test_training():
    """Windows, checkpoints and the end of a job."""
    undisturbed = House()
    adapter = trained(undisturbed.folder)
    want = (adapter / "adapter_model.safetensors").read_bytes()

    def prepare(house):
        prepare_training(house)
        house.submit(a_job())

    def act(house):
        try:
            house.wait([j["name"] for j in house.objects("ls")], seconds=60)
        except Failure:
            if not house.died(within=10):
                raise
        return None

    def check(house, _):
        (job,) = house.objects("ls")
        (job,) = house.wait([job["name"]], seconds=60)
        got = (house.adapter(job["name"]) / "adapter_model.safetensors").read_bytes()
        assert got == want, "the adapter's bytes differ"
        assert [m["step"] for m in house.objects("metrics", job["name"])] == list(range(1, 7))
        for checkpoint in house.objects("checkpoint", "ls", job["name"]):
            house.lora("checkpoint", "get", job["name"], "--all", "--step", checkpoint["step"], "-o", house.folder / f"step-{checkpoint['step']}")
    run_scene("train", prepare, act, check, workers=1)
    undisturbed.clear()


def test_adapter():
    source = House()
    adapter = trained(source.folder)
    want = hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()

    def act(house):
        return acknowledged(house.run("adapter", "import", "start", "--path", adapter))

    def check(house, done):
        found = house.objects("adapter", "ls")
        assert len(found) == 1 or done is None and not found, "an acknowledged adapter is gone"
        if not found:
            house.lora("adapter", "import", "start", "--path", adapter)
        (one,) = house.objects("adapter", "ls")
        assert one["sha256"] == want
        job = a_job()
        job["adapter"]["init_from"] = "start"
        path = house.folder / "job.json"
        path.write_text(json.dumps(job))
        house.lora("submit", "-f", path)
    run_scene("import an adapter", prepare_training, act, check)
    source.clear()


if __name__ == "__main__":
    main([test_dataset, test_model_and_job, test_delete, test_adapter, test_training])
