"""What scripts may rely on: streams, exit statuses, keys, ids, times."""

import itertools
import json
import os
import random
import re
import shlex
import signal
import subprocess
import time

from formats import read_safetensors, token_rows, write_model
from house import House, LORA, LORAD, PLAN, ROOT, WORKER, main, tell

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
ID = re.compile(r"[a-z0-9-]+")


def prepare(house):
    house.lora("model", "add", "small", "--path", write_model(house.folder / "model", tokenizer=True))
    house.add_dataset("rows", token_rows(random.Random(1), 12, longest=200))
    house.add_dataset("validation", token_rows(random.Random(2), 3, longest=100))


def a_job(**training):
    return {"display_name": "a job", "base_model": "small", "training_dataset": "rows", "validation_dataset": "validation",
            "adapter": {"rank": 4}, "labels": {"team": "math"},
            "training": {"max_steps": 6, "batch_size": 3, "max_length": 512, "checkpoint_every_steps": 2, "eval_every_steps": 3, **training}}


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_hang_up():
    """A terminal that is closed ends the daemon and a worker of its own, but those that nohup started."""
    for ignored in (False, True):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        try:
            house = House(None, "--workers", "none")
            house.start()
            worker = house.start_worker("--name", "w")
        finally:
            signal.signal(signal.SIGHUP, before)
        house.wait_for_worker()
        for process in (worker, house.process):
            process.send_signal(signal.SIGHUP)
            if ignored:
                time.sleep(1)
                assert process.poll() is None, house.log()
            else:
                assert process.wait(30) == 0, house.log()
        if ignored:
            assert house.objects("worker", "ls")[0]["state"] == "IDLE"
            house.end_workers()
            assert house.stop() == 0
        house.clear()


def test_daemon():
    """One line on stdout, and a clean stop by either signal."""
    for number in (signal.SIGTERM, signal.SIGINT):
        house = House(None, "--workers", "cpu:1", "--log-format", "json")
        house.start()
        house.wait_for_worker()
        pids = house.worker_pids()
        house.process.send_signal(number)
        assert house.process.wait(30) == 0, house.log()
        assert house.process.stdout.read() == ""
        for line in house.log().splitlines():
            json.loads(line)
        for pid in pids:
            assert not is_running(pid), "a worker outlived its daemon"
        house.clear()
    for program, arguments in ((LORAD, []), (LORAD, ["serve"]), (LORAD, ["serve", "--data-dir", "/tmp/x", "--frobnicate"]), (WORKER, ["--frobnicate"])):
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and done.stdout == "" and done.stderr, (program, arguments, done)


def test_a_job_in_json():
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        path = house.folder / "job.json"
        path.write_text(json.dumps(a_job()))
        estimate = house.object("estimate", "-f", path)
        assert estimate["total_steps"] == 6 and estimate["total_tokens"] > 0 and estimate["fits"] is True and estimate["seconds"] > 0
        memory = estimate["peak_memory_bytes"]
        assert memory["total"] == sum(memory[k] for k in ("weights", "adapters", "optimizer", "activations", "workspace"))
        checked = house.run("submit", "-f", path, "--validate-only")
        assert checked.status == 0 and checked.out == "" and house.objects("ls") == [], checked

        submitted = house.lora("submit", "-f", path)
        name = submitted.out.strip()
        assert submitted.out == name + "\n" and ID.fullmatch(name)
        watched = house.lora("watch", name)
        lines = watched.out.splitlines()
        assert lines[-1].startswith(f"{name} (a job)  SUCCEEDED  step 6/6"), lines

        job = house.object("show", name)
        for key in ("name", "state", "step", "total_steps", "loss", "validation_loss", "initial_validation_loss", "tokens_per_second",
                    "adapters_per_microbatch", "base_model", "priority", "create_time", "error", "queue"):
            assert key in job, key
        assert job["state"] == "SUCCEEDED" and job["step"] == job["total_steps"] == 6 and job["last_checkpoint_step"] == 6
        assert all(TIME.fullmatch(job[key]) for key in ("create_time", "start_time", "end_time")), job
        assert job["error"] is None and job["queue"] is None and job["adapters_per_microbatch"] == 1 and job["tokens"] == job["total_tokens"]
        assert job["training"]["learning_rate"] == 2e-4 and job["training"]["schedule"] == "LINEAR" and job["adapter"]["alpha"] == 8

        metrics = house.objects("metrics", name)
        assert [set(m) for m in metrics] == 6 * [{"step", "loss", "grad_norm", "learning_rate", "trained_tokens", "tokens", "step_time_ms"}]
        assert [m["step"] for m in metrics] == list(range(1, 7)) and metrics[-1]["loss"] == job["loss"]
        assert sum(m["tokens"] for m in metrics) == job["tokens"]
        assert [m["step"] for m in house.objects("metrics", name, "--after-step", 4)] == [5, 6]
        evaluations = house.objects("metrics", name, "--evaluation")
        assert [e["step"] for e in evaluations] == [0, 3, 6]
        assert (evaluations[0]["validation_loss"], evaluations[-1]["validation_loss"]) == (job["initial_validation_loss"], job["validation_loss"])

        events = house.objects("events", name)
        states = [e["to_state"] for e in events if e["reason"] == "STATE_CHANGED"]
        assert states[-1] == "SUCCEEDED" and [e["revision"] for e in events] == sorted({e["revision"] for e in events}), events
        tell("    states: " + " ".join(states))
        cluster = house.object("cluster")
        assert cluster["jobs_by_state"]["SUCCEEDED"] == 1 and cluster["workers"] == 1
        (worker,) = house.objects("worker", "ls")
        assert worker["device"] == "cpu" and worker["memory_bytes"] > 0 and worker["numerics_id"]
        for command in (["ls"], ["show", name], ["metrics", name], ["metrics", name, "--evaluation"], ["events", name], ["cluster"],
                        ["worker", "ls"], ["model", "ls"], ["model", "show", "small"], ["dataset", "ls"], ["dataset", "show", "rows"],
                        ["adapter", "ls"], ["checkpoint", "ls", name], ["estimate", "-f", path]):
            assert house.lora(*command).out, command
    house.clear()


def recorded(file):
    """The jobs of a recorded history that have ended, and all it has; None while there is none."""
    if not file.exists():
        return None
    history = json.loads(file.read_text())
    return {job["name"] for job in history["jobs"] if "ended_s" in job}, history


def test_tokens_of_an_epoch_that_is_cut_short():
    """Which of its rows are trained is known as they are: never more than all, and at the end all."""
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        names = [house.submit(a_job(max_steps=steps)) for steps in (5, 7)]  # an epoch has 4
        house.wait(names)
        for name in names:
            job = house.object("show", name)
            trained = sum(step["tokens"] for step in house.objects("metrics", name))
            assert job["tokens"] == job["total_tokens"] == trained, (job, trained)
    house.clear()


def test_a_recorded_history_is_replayed():
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        assert house.run("cluster", "--once").status == 2  # it is of a recording
        refused = house.run("cluster", "--record", house.folder / "nowhere/history.json", "--once")
        assert refused.status == 1 and refused.err.splitlines()[-1].startswith("error: FILE_UNWRITABLE: "), refused
        file = house.folder / "history.json"
        names = {house.submit(a_job())}
        house.wait(list(names))
        recording = subprocess.Popen(list(map(str, house.lora_command("cluster", "--record", file))), stderr=subprocess.DEVNULL)
        names.add(house.submit(a_job()))  # comes while it records
        end = time.monotonic() + 60
        while recorded(file) is None or recorded(file)[0] != names:
            assert recording.poll() is None and time.monotonic() < end, recorded(file)
            time.sleep(0.2)
        recording.send_signal(signal.SIGINT)
        recording.wait(30)
        once = house.lora("cluster", "--record", file, "--share-label", "team", "--once")
        note = "lora: the daemon shares by no label (lorad serve --share-label), the history has who shares by 'team'\n"
        assert once.out == "" and once.err == f"{note}lora: 2 jobs in {file}\n", once
        for key in ("Team", "my team", "gr\u00f6\u00dfe", "", "x" * 64):
            refused = house.run("cluster", "--record", file, "--share-label", key, "--once")
            assert refused.status == 1 and f"error: INVALID_FIELDS: --share-label '{key}' is no key of a label: give 1 to 63" in refused.err, refused
        ended, history = recorded(file)
        assert ended == names and history["models"][0]["ffn"] > 0 and len(history["workers"]) == 1, history
        assert all(job["label_group"] == "math" and job["steps"] == 6 for job in history["jobs"]), history
        done = subprocess.run([PLAN, "schedule", "--json", file], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        replays = {replay["policy"]: replay for replay in json.loads(done.stdout)["replays"]}
        assert "recorded" in replays and all(replay["ended"] == 2 for replay in replays.values()), replays
    house.clear()


def test_a_recording_into_a_pipe():
    """Its reader gets one after the other, as from stdout, and ends it by going."""
    with House(None, "--workers", "none") as house:
        pipe = house.folder / "pipe"
        os.mkfifo(pipe)
        recording = subprocess.Popen(list(map(str, house.lora_command("cluster", "--record", pipe))), stderr=subprocess.DEVNULL)
        try:
            with open(pipe) as reader:
                ends = list(itertools.islice((line for line in reader if line == "}\n"), 2))
            assert len(ends) == 2, "the pipe was closed behind a recording"
            assert recording.wait(30) == -signal.SIGPIPE
        finally:
            recording.kill()
    house.clear()


def test_filters_and_removal():
    with House(None, "--workers", "none") as house:
        prepare(house)
        names = [house.submit({**a_job(), "display_name": f"job-{i}", "labels": {"team": team}}) for i, team in enumerate(("math", "prose", "math"))]
        assert [j["name"] for j in house.objects("ls")] == names[::-1]
        found = house.objects("ls", "--filter", "labels.team = math AND display_name != job-0")
        assert [j["name"] for j in found] == [names[2]]
        house.lora("cancel", names[0], names[1])
        house.wait(names[:2], state="CANCELLED")
        assert house.run("watch", names[0]).status == 1  # though it had ended before
        assert {j["name"] for j in house.objects("ls", "--filter", "state = CANCELLED")} == set(names[:2])
        house.lora("rm", names[0])
        assert house.run("show", names[0]).status == 1
        house.lora("cancel", names[1])  # idempotent
    house.clear()


def test_checkpoints():
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        name = house.submit(a_job())
        house.wait([name])
        steps = [c["step"] for c in house.objects("checkpoint", "ls", name)]
        assert steps[-1] == 6, steps
        tell(f"    checkpoints kept: {steps}")
        newest = house.adapter(name)
        assert sorted(p.name for p in newest.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
        config = json.loads((newest / "adapter_config.json").read_text())
        assert config["peft_type"] == "LORA" and config["r"] == 4 and config["lora_alpha"] == 8
        tensors = read_safetensors(newest / "adapter_model.safetensors")
        assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in tensors
        again = house.run("checkpoint", "get", name, "-o", newest)
        assert again.status == 1 and "DIRECTORY_EXISTS" in again.err
        assert house.run("checkpoint", "get", name, "--step", 5000, "-o", house.folder / "none").status == 1
        assert not (house.folder / "none").exists()
        everything = house.folder / "everything"
        house.lora("checkpoint", "get", name, "--all", "-o", everything)
        assert (everything / "optimizer.safetensors").exists()

        # On from there, by an imported adapter and by the checkpoint itself.
        house.lora("adapter", "import", "start", "--path", newest)
        for start in ("start", f"{name}/6"):
            job = a_job()
            job["adapter"]["init_from"] = start
            (more,) = house.wait([house.submit(job)])
            assert abs(more["initial_validation_loss"] - house.object("show", name)["validation_loss"]) < 1e-6, start
    house.clear()


def test_the_newest_checkpoint_that_is_there():
    """Of an ended job whose last ones were deleted, with a job that keeps some and one that keeps all."""
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        for keeping in ({}, {"checkpoint_keep_last": 2}):
            name = house.submit(a_job(**keeping))
            house.wait([name])
            house.lora("checkpoint", "rm", name, "--step", 6, "--step", 6)  # one is one
            for how in ((), ("--merged",)):
                folder = house.folder / f"{name}{len(how)}"
                got = json.loads(house.lora("checkpoint", "get", name, "-o", folder, *how, "--json").out)
                assert got["step"] == 4 and folder.is_dir(), got
            steps = ", ".join(str(c["step"]) for c in house.objects("checkpoint", "ls", name))
            for command in (("checkpoint", "get", name, "--step", 6, "-o", house.folder / "none"), ("checkpoint", "rm", name, "--step", 6),
                            ("generate", f"{name}/6", "a")):
                gone = house.run(*command)
                assert gone.status == 1 and f"CHECKPOINT_NOT_FOUND: job '{name}' has no checkpoint of step 6; it has steps {steps}\n" in gone.err, gone
            for step in steps.split(", "):
                house.lora("checkpoint", "rm", name, "--step", step)
            for how in ((), ("--merged",)):
                none = house.run("checkpoint", "get", name, "-o", house.folder / "none", *how)
                assert none.status == 1 and f"CHECKPOINT_NOT_FOUND: job '{name}' has no checkpoint\n" in none.err, none
            assert not (house.folder / "none").exists()
            none = house.run("generate", name, "a")
            assert none.status == 1 and f"NO_CHECKPOINT: job '{name}' has no checkpoint: all that it saved were deleted" in none.err, none
    house.clear()


def test_a_shown_job_is_submitted_again():
    """The real pipe of two programs: what `show --json` says is a job that trains to the same bits."""
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        job = {**a_job(), "display_name": "\u6570 and \U0001f680"}
        job["adapter"].update(seed=3, use_rslora=True, dropout=0.125)
        name = house.submit(job)
        house.wait([name])
        lora = " ".join(map(shlex.quote, map(str, house.lora_command())))
        piped = subprocess.run(["bash", "-o", "pipefail", "-c", f"{lora} show --json {name} | {lora} submit -f -"],
                               capture_output=True, text=True, timeout=60)
        assert piped.returncode == 0 and ID.fullmatch(piped.stdout.strip()), piped
        (again,) = house.wait([piped.stdout.strip()])
        first = house.object("show", name)
        assert again["name"] != name and all(again[key] == first[key] for key in ("display_name", "adapter", "training", "labels", "loss")), again
        weights = [(house.adapter(job) / "adapter_model.safetensors").read_bytes() for job in (name, again["name"])]
        assert weights[0] == weights[1], "the same job has another adapter"
    house.clear()


def test_watch_outlives_the_daemon():
    """A watch takes up again where it was when the daemon comes back."""
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        name = house.submit(a_job(max_steps=150, checkpoint_every_steps=5, eval_every_steps=0))
        port = house.address.split(":")[1]
        watch = subprocess.Popen(["stdbuf", "-oL", *map(str, [*house.lora_command(), "watch", name])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        house.wait([name], until=lambda job: job["step"] >= 3)
        house.kill()
        house.start("--listen", f"127.0.0.1:{port}")
        out, err = watch.communicate(timeout=300)
        assert watch.returncode == 0, (out, err)
        assert "SUCCEEDED" in out.splitlines()[-1], out
    house.clear()


def test_files_of_jobs_in_three_formats():
    """lorad-run-jobs fetches the adapter of each under the file's name, and the same job has the same adapter."""
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        files = {
            "a.json": json.dumps({"base_model": "small", "training_dataset": "rows", "adapter": {"rank": 2},
                                  "training": {"max_steps": 2, "batch_size": 2, "max_length": 512, "learning_rate": 1e-3}}),
            "b.b.yml": "base_model: small\ntraining_dataset: rows\nadapter: {r: 2}\n"
                       "training: {max_steps: 2, batch_size: 2, max_length: 512, learning_rate: 1e-3}\n",
            "c.toml": 'base_model = "small"\ntraining_dataset = "rows"\nadapter.r = 2\n'
                      "[training]\nmax_steps = 2\nbatch_size = 2\nmax_length = 512\nlearning_rate = 1e-3\n"}
        for name, text in files.items():
            (house.folder / name).write_text(text)
        out = house.folder / "out"
        environment = {**os.environ, "PATH": f"{LORA.parent}:{os.environ['PATH']}", "LORAD_SERVER": house.address}
        command = [ROOT / "deploy/launch/lorad-run-jobs", out, *(house.folder / name for name in files)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done
        assert sorted(path.name for path in out.iterdir()) == ["a", "b.b", "c"], done
        weights = {(path / "adapter_model.safetensors").read_bytes() for path in out.iterdir()}
        assert len(weights) == 1, "the same job in another format has another adapter"
    house.clear()


if __name__ == "__main__":
    main([test_hang_up, test_daemon, test_a_job_in_json, test_tokens_of_an_epoch_that_is_cut_short, test_a_recorded_history_is_replayed,
          test_a_recording_into_a_pipe, test_files_of_jobs_in_three_formats, test_filters_and_removal, test_checkpoints, test_the_newest_checkpoint_that_is_there,
          test_a_shown_job_is_submitted_again, test_watch_outlives_the_daemon])
