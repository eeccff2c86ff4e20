"""Jobs that step aside and go on: paused, from a drained worker, held by a quota; with the same bits, also where the daemon is
killed meanwhile. And the commands for it.

usage: departures_test.py [TEST ...]
"""

import contextlib
import functools
import hashlib
import os
import signal
import subprocess
import time

from house import GOLDEN, Failure, House, main, tell

MODEL, ROWS = "llama_gqa_untied", "llama_gqa_untied/r8_all"
STEPS = 3000  # some seconds, so that commands come in time


def a_job(**fields):
    """Long enough to be caught on the way; it saves nothing but what it is told to, and its end."""
    return {"base_model": "llama", "training_dataset": "rows", "adapter": {"rank": 4, "dropout": 0.1, "seed": 1},
            "training": {"max_steps": STEPS, "batch_size": 3, "max_length": 256, "learning_rate": 2e-3, "seed": 1,
                         "checkpoint_every_steps": 0}, **fields}


@contextlib.contextmanager
def a_house(workers="cpu:1"):
    with House(None, "--workers", workers, "--worker-threads", 1) as house:
        house.lora("model", "add", "llama", "--path", GOLDEN / MODEL / "model")
        house.lora("dataset", "add", "rows", GOLDEN / ROWS / "train.jsonl")
        if workers != "none":
            house.wait_for_worker()
        yield house
    house.clear()


def until(predicate, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := predicate()):
        if time.monotonic() > deadline:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(0.02)
    return found


def reach(house, job, step):
    return until(lambda: house.object("show", job)["step"] >= step, f"step {step} of {job}")


def becomes(house, job, *states):
    return until(lambda: (found := house.object("show", job))["state"] in states and found, f"{job} is {states}")


def worker_of(house):
    (worker,) = house.objects("worker", "ls")
    return worker


def drained(house):
    return until(lambda: (found := worker_of(house))["state"] == "DRAINED" and found, "the worker is DRAINED")


def adapter_of(house, job):
    house.wait([job])
    return hashlib.sha256((house.adapter(job) / "adapter_model.safetensors").read_bytes()).hexdigest()


@functools.cache
def undisturbed():
    """The hash of the adapter of a job that nobody disturbed."""
    with a_house() as house:
        return adapter_of(house, house.submit(a_job()))


def fails(house, reason, *arguments, status=1):
    result = house.run(*arguments)
    assert result.status == status and result.err.startswith(f"error: {reason}: "), result
    return result.err


def test_paused():
    """Its bytes are those of a job that nobody disturbed; a watch waits for it and says so."""
    bytes_undisturbed = undisturbed()
    with a_house() as house:
        job = house.submit(a_job())
        out, err = house.folder / "watch.out", house.folder / "watch.err"
        with open(out, "w") as stdout, open(err, "w") as stderr:
            watch = subprocess.Popen(list(map(str, house.lora_command("watch", job, "--until-done"))), stdout=stdout, stderr=stderr)
        reach(house, job, 20)
        assert house.object("pause", job)["state"] == "PAUSING"
        paused = becomes(house, job, "PAUSED")
        assert 20 <= paused["step"] == paused["last_checkpoint_step"] < STEPS, paused
        assert house.object("pause", job)["state"] == "PAUSED"  # again is no error
        until(lambda: f"{job} is PAUSED; waiting until it is resumed (`lora resume {job}`)" in err.read_text(), "the watch waits")
        until(lambda: f"PAUSED  waits for `lora resume {job}`" in out.read_text(), "the watch shows it")
        time.sleep(1)
        assert house.object("show", job)["step"] == paused["step"] and watch.poll() is None
        assert house.lora("resume", job).err == f"{job}: QUEUED\n"
        bytes_resumed = adapter_of(house, job)
        fails(house, "JOB_ENDED", "pause", job)
        assert watch.wait(timeout=30) == 0, err.read_text()
        assert bytes_resumed == bytes_undisturbed
        tell(f"    paused at step {paused['step']} of {STEPS}: the same {bytes_resumed[:12]}")


def test_drained():
    """The one worker is drained: its job waits and says why; undrained, it goes on with the same bits."""
    bytes_undisturbed = undisturbed()
    with a_house() as house:
        job = house.submit(a_job())
        reach(house, job, 20)
        worker = worker_of(house)
        name = worker["name"]
        drain = house.lora_command("worker", "drain", name, "--reason", "a new disk", "--wait")
        os.kill(worker["pid"], signal.SIGSTOP)  # else its job may have left before the command looks
        with subprocess.Popen(list(map(str, drain)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
            assert "1 job is left on it" in (said := waiting.stderr.readline()), said
            os.kill(worker["pid"], signal.SIGCONT)
            out, err = waiting.communicate(timeout=60)
        assert (waiting.returncode, out) == (0, "") and err.endswith(f"{name}: DRAINED\n"), (waiting.returncode, out, err)
        waits = becomes(house, job, "QUEUED")
        assert waits["queue"]["why"] == f"worker '{name}' is drained (a new disk)", waits["queue"]
        assert waits["step"] == waits["last_checkpoint_step"] >= 20
        assert ": a new disk\n" in house.lora("worker", "ls").out
        time.sleep(1)
        assert house.object("show", job)["state"] == "QUEUED"
        assert house.object("worker", "undrain", name)["state"] in ("IDLE", "FORMING")
        assert adapter_of(house, job) == bytes_undisturbed
        fails(house, "WORKER_NOT_FOUND", "worker", "drain", "nobody", "--reason", "x")
        fails(house, "INVALID_FIELDS", "worker", "drain", name, "--reason", "")
        fails(house, "USAGE", "worker", "drain", name, status=2)


def test_updated():
    """A higher priority moves a job to the front of the queue; labels are changed one by one."""
    with a_house() as house:
        name = worker_of(house)["name"]
        house.lora("worker", "drain", name, "--reason", "so that all wait", "--wait")
        first, second = house.submit(a_job()), house.submit(a_job(labels={"team": "math"}))
        places = [becomes(house, job, "QUEUED")["queue"]["place"] for job in (first, second)]
        assert places == [1, 2], places
        changed = house.object("update", second, "--priority", "5", "--label", "run=2", "user=bob")
        assert changed["priority"] == 5 and changed["labels"] == {"team": "math", "run": "2", "user": "bob"}, changed
        assert [house.object("show", job)["queue"]["place"] for job in (first, second)] == [2, 1]
        changed = house.object("update", second, "--remove-label", "run", "team", "--label", "user=ann")
        assert changed["priority"] == 5 and changed["labels"] == {"user": "ann"}, changed
        fails(house, "ETAG_MISMATCH", "update", second, "--label", "a=b", "--etag", "0")
        assert house.object("update", second, "--priority", "6", "--etag", changed["etag"])["priority"] == 6
        fails(house, "USAGE", "update", second, "--priority", "101", status=2)
        fails(house, "JOB_NOT_FOUND", "update", "job-nobody", "--label", "a=b")
        fails(house, "USAGE", "update", second, status=2)
        fails(house, "USAGE", "update", second, "--label", "nothing", status=2)


def test_quota():
    """Under a quota of one running job the second waits, and runs once the first has ended."""
    bytes_undisturbed = undisturbed()
    with a_house() as house:
        quota = house.object("quota", "set", "team=math", "--running", "1", "--stored", "10GiB")
        assert quota["running_jobs"] == 1 and quota["stored_bytes"] == 10 << 30 and quota["queued_jobs"] is None, quota
        first, second = (house.submit(a_job(labels={"team": "math"})) for _ in range(2))
        other = house.submit(a_job(labels={"team": "art"}))
        reach(house, first, 5)
        becomes(house, other, "RUNNING")
        waits = house.object("show", second)
        assert waits["state"] == "QUEUED" and waits["queue"]["why"] == "quota team=math: 1 of 1 job runs", waits
        (listed,) = house.objects("quota", "ls")
        assert listed["use"] == [{"label": "team=math", "running_jobs": 1, "queued_jobs": 1, "stored_bytes": 0}], listed
        assert {adapter_of(house, job) for job in (first, second, other)} == {bytes_undisturbed}
        (listed,) = house.objects("quota", "ls")
        stored = listed["use"][0]["stored_bytes"]
        files = [file for job in (first, second) for checkpoint in house.objects("checkpoint", "ls", job) for file in checkpoint["files"]]
        assert stored == sum(file["size_bytes"] for file in files) > 0, (stored, files)
        house.lora("quota", "set", "team=math", "--queued", "0")
        job = house.folder / "refused.json"
        job.write_text('{"base_model": "llama", "training_dataset": "rows", "labels": {"team": "math"}}')
        error = fails(house, "QUOTA_EXCEEDED", "submit", "-f", job)
        assert "quota team=math: 0 of 0 jobs are queued: wait until" in error, error
        house.lora("quota", "rm", "team=math")
        fails(house, "QUOTA_NOT_FOUND", "quota", "rm", "team=math")
        fails(house, "INVALID_FIELDS", "quota", "set", "team")
        house.lora("cancel", house.lora("submit", "-f", job).out.strip())


def test_killed_while_pausing():
    """kill -9 of the daemon while its job is PAUSING: after the start it is PAUSED, and its bytes are the same."""
    bytes_undisturbed = undisturbed()
    with a_house() as house:
        job = house.submit(a_job())
        reach(house, job, 20)
        state = house.object("pause", job)["state"]
        house.kill()
        assert state == "PAUSING", state
        house.start()
        found = house.object("show", job)
        assert found["state"] == "PAUSED" and found["step"] == found["last_checkpoint_step"], found
        house.wait_for_worker()
        time.sleep(0.5)
        assert house.object("show", job)["state"] == "PAUSED"
        house.lora("resume", job)
        assert adapter_of(house, job) == bytes_undisturbed


def test_finished():
    """A job that is to finish ends there, over a kill -9 as well, with what an undisturbed one has at that step."""
    with a_house() as house:
        job_of = lambda every: {**a_job(), "training": {**a_job()["training"], "checkpoint_every_steps": every}}
        for killed in (False, True):
            job = house.submit(job_of(0))
            reach(house, job, 5)
            end = int(house.object("finish", job)["finish_step"])
            if killed:
                house.kill()
                house.start()
                assert house.object("show", job)["finish_step"] == end
            (done,) = house.wait([job])
            assert 5 <= done["step"] == done["finish_step"] == done["last_checkpoint_step"] == end < STEPS, done
            whole = house.submit(job_of(end))
            until(lambda: house.object("show", whole)["last_checkpoint_step"] >= end, f"the checkpoint of step {end}")
            same = {(house.adapter(name, end) / "adapter_model.safetensors").read_bytes() for name in (whole, job)}
            assert len(same) == 1, f"finished at {end}, other bytes"
            house.lora("cancel", whole)


def test_killed_while_draining():
    """The same while its worker is DRAINING: after the start it is drained, and its job waits."""
    bytes_undisturbed = undisturbed()
    with a_house() as house:
        job = house.submit(a_job())
        reach(house, job, 20)
        name = worker_of(house)["name"]
        state = house.object("worker", "drain", name, "--reason", "a new disk")["state"]
        house.kill()
        assert state == "DRAINING", state
        house.start()
        found = drained(house)
        assert found["name"] == name and found["drain_reason"] == "a new disk", found
        assert becomes(house, job, "QUEUED")["queue"]["why"] == f"worker '{name}' is drained (a new disk)"
        house.lora("worker", "undrain", name)
        assert adapter_of(house, job) == bytes_undisturbed


def test_told_to_end():
    """Workers are told to end, eight in a row, by one signal or by two at once: nothing that they did is lost, and no job fails."""
    bytes_undisturbed = undisturbed()
    with a_house(workers="none") as house:
        job = house.submit(a_job())
        steps = [0]
        for number in range(8):
            worker = house.start_worker("--name", "w", "--threads", 1)
            reach(house, job, steps[-1] + 1)
            worker.send_signal(signal.SIGTERM)
            if number % 2:
                worker.send_signal(signal.SIGINT)
            assert worker.wait(timeout=15) == 0
            waits = becomes(house, job, "QUEUED")
            assert waits["step"] == waits["last_checkpoint_step"] > steps[-1], waits
            steps.append(waits["step"])
        said = [event["reason"] for event in house.objects("events", job)]
        assert "WORKER_LOST" not in said, said
        house.start_worker("--name", "w", "--threads", 1)
        assert adapter_of(house, job) == bytes_undisturbed
        tell(f"    ended at steps {steps[1:]} of {STEPS}: the same bits")


def test_told_to_end_without_time():
    """A grace period that is too short costs steps, and is still no job's doing; a second signal ends a worker at once."""
    with a_house(workers="none") as house:
        job = house.submit(a_job())
        worker = house.start_worker("--name", "w", "--threads", 1, "--grace-period", 600)
        reach(house, job, 20)
        house.process.send_signal(signal.SIGSTOP)  # it saves nothing
        worker.terminate()
        time.sleep(1.2)
        assert worker.poll() is None
        worker.terminate()
        house.process.send_signal(signal.SIGCONT)  # it hears a worker that is gone
        assert worker.wait(timeout=10) == 0
        waits = becomes(house, job, "QUEUED")
        assert waits["step"] == 0, waits
        lost = [event["message"] for event in house.objects("events", job) if event["reason"] == "WORKER_LOST"]
        assert len(lost) == 1 and "it was told to end" in lost[0], lost


if __name__ == "__main__":
    main([test_paused, test_drained, test_updated, test_quota, test_killed_while_pausing, test_finished,
          test_killed_while_draining, test_told_to_end, test_told_to_end_without_time])
