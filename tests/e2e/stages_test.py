"""Several workers as one: jobs on 2, 3 and 4 stages end with the bytes of one worker, whoever is killed or stopped, and go on
on another number of stages.

usage: stages_test.py [TEST...] [seed=N] [steps=N] [seconds=N]     seconds: of the storm
"""

import json
import random
import re
import sys

import golden
from house import House, main, tell
from isolation import Subjects, outcome
from staged import HOUSE, LAYERS, groups, on_one_worker, on_stages, start_workers, storm, until

OPTIONS = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
SEED = int(OPTIONS.get("seed", random.SystemRandom().randrange(2**31)))
STEPS = int(OPTIONS.get("steps", 30))
STORM_SECONDS = float(OPTIONS.get("seconds", 20))
SUBJECTS = Subjects(SEED, STEPS)
LASTING = Subjects(SEED, 6 * STEPS)  # that commands catch as they train
LONG = Subjects(SEED, 25 * STEPS)  # that most storms do not outlive
LOSS, MATRIX = 1e-5, 1e-4  # relative, from PEFT's
LEASE_S = 3


def start(house, name, place):
    house.start_worker("--name", name, "--threads", "1")


def test_bytes_of_one_worker():
    for stages in (2, 3, 4):
        on_stages(SUBJECTS, start, stages)


def spans(events, names, process, track):
    return sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events
                  if e["ph"] == "X" and names[e["pid"]].startswith(process) and e["tid"] == track)


def check_pipeline(events, names, slack):
    """A stage does one thing at a time, begins what it has received, and receives what was computed."""
    compute, send, receive = range(3)
    for stage in range(2):
        for track in range(3):
            bars = spans(events, names, f"stage {stage} ", track)
            for before, behind in zip(bars, bars[1:]):
                assert behind[0] >= before[1] - slack, (stage, track, before, behind)
    ends = {name: end for _, end, name in spans(events, names, "stage 0 ", compute)}
    starts = {name: start for start, _, name in spans(events, names, "stage 1 ", compute)}
    arrivals = spans(events, names, "stage 1 ", receive)
    assert arrivals == spans(events, names, "stage 0 ", send)
    assert len(arrivals) > 10, arrivals
    for start, end, name in arrivals:
        forward = "F" + name[1:]
        if forward in ends and forward in starts:
            assert ends[forward] <= start + slack and end <= starts[forward] + slack, (name, start, end, ends[forward], starts[forward])


def test_what_is_seen():
    """`worker ls`, `cluster` and `trace` while two stages train."""
    with House(None, *HOUSE) as house:
        LASTING.prepare(house, "--stages", 2, layers=LAYERS)
        names = [house.submit(job) for job in LASTING.jobs()]
        refused = house.run("trace", names[0])
        assert refused.status != 0 and "JOB_NOT_TRAINING" in refused.err, refused
        start_workers(house, start, 2)
        until(lambda: any(group["measured_microbatches"] > 40 for group in house.object("cluster")["groups"]), "40 microbatches are measured")
        path = house.folder / "trace.json"
        trace = house.object("trace", names[0], "-o", path, "--microbatches", 32)
        (group,) = house.object("cluster")["groups"]
        workers = house.objects("worker", "ls")
        learned = house.object("estimate", names[0])
        assert house.run("trace", names[0], "--microbatches", 2000).status != 0
        house.lora("worker", "ls"), house.lora("cluster"), house.lora("trace", names[0])
        house.wait(names)
        refused = house.run("trace", names[0])
        assert "JOB_NOT_TRAINING" in refused.err, refused
        chrome = json.loads(path.read_text())
    house.clear()

    assert sorted(worker["stage"] for worker in workers) == [0, 1], workers
    assert all(worker["stages"] == 2 and worker["host"] and worker["transport"] == "sockets" for worker in workers), workers
    assert all(0 < worker["resident_bytes"] <= worker["peak_resident_bytes"] for worker in workers), workers
    assert group["measured_microbatches"] > 0 and 0 < group["bubble_ratio"] < 1, group
    for stage in group["stages"]:
        assert abs(stage["busy"] + stage["waiting"] - 1) < 1e-9 and 0 < stage["busy"] < 1 and 0 < stage["transfer"] < 1, stage
    assert group["stages"][0]["end_block"] == group["stages"][1]["first_block"], group
    assert learned["seconds_basis"] == "measured on this base model", learned

    assert len(trace["microbatches"]) == 32 and trace["simulated_bars"], trace
    assert trace["simulated_bubble_ratio"] <= trace["bubble_ratio"] + 1e-6, trace
    events = chrome["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for measured in (True, False):
        word = "measured" if measured else "simulated"
        names = {pid: name if name.endswith(word) else "" for pid, name in processes.items()}
        assert sum(map(bool, names.values())) == 2, processes
        check_pipeline(events, names, slack=2000 if measured else 1e-3)
    tell(f"bubble {100 * trace['bubble_ratio']:.1f} %, of the same operations without waits {100 * trace['simulated_bubble_ratio']:.1f} %")


def test_goldens():
    for stages in (2, 4):
        with House(None, "--workers", "none") as house:
            model, runs = "llama-gqa-untied", golden.RUNS["llama-gqa-untied"]
            house.lora("model", "add", model, "--path", golden.folder_of(model) / "model", "--stages", stages)
            for run in runs:
                house.lora("dataset", "add", golden.name_of(model, run), golden.folder_of(model, run) / "train.jsonl")
                house.lora("adapter", "import", golden.name_of(model, run), "--path", golden.folder_of(model, run) / "init")
            names = [house.submit(golden.job_of(model, run)) for run in runs]
            start_workers(house, start, stages)
            house.wait(names)
            for name, run in zip(names, runs):
                found = golden.differences(house, name, model, run)
                assert found["loss"] <= LOSS and found["matrix"] <= MATRIX, (stages, run, found)
        house.clear()


def test_a_job_goes_on_on_another_number_of_stages():
    """Stopped on two stages, it goes on alone, and then on three."""
    want = on_one_worker(LASTING, start)
    with House(None, *HOUSE) as house:
        LASTING.prepare(house, "--stages", 2, layers=LAYERS)
        names = [house.submit(job) for job in LASTING.jobs()]
        start_workers(house, start, 2)
        for stages, share in ((1, 6), (3, 3)):
            house.wait(names[:1], until=lambda job: job["step"] >= LASTING.steps // share)
            house.lora("pause", *names)
            house.wait(names, until=lambda job: job["state"] in ("PAUSED", "SUCCEEDED"))
            house.end_workers()
            house.lora("model", "update", "small", "--stages", stages)
            start_workers(house, start, 3)
            for name in names:
                house.run("resume", name)
            until(lambda: set(groups(house)) == {stages}, f"groups of {stages} workers")
        house.wait(names)
        LASTING.compare("on 2, 1 and 3 stages", outcome(house, names), want)
    house.clear()


def test_a_stage_that_lives_keeps_its_weights():
    """Of two stages the first is killed, with a spare worker beside them: the other one has its blocks again, and reads nothing."""
    want = on_one_worker(LASTING, start)
    with House(None, *HOUSE, "--lease", LEASE_S) as house:
        LASTING.prepare(house, "--stages", 2, layers=LAYERS)
        names = [house.submit(job) for job in LASTING.jobs()]
        start_workers(house, start, 2)
        until(lambda: any(job["step"] > 0 for job in house.objects("ls")), "a step is done")
        assert "with the weights that it had" not in house.log()
        start(house, "w2", 2)
        killed = house.workers.pop(0)
        killed.kill()
        killed.wait()
        house.wait(names)
        formed = re.findall(r"formed on '(w\d)' in \S+ s, (with the weights that it had)?", house.log())
        assert formed[:2] in ([("w0", ""), ("w1", "")], [("w1", ""), ("w0", "")]), formed
        assert sorted(formed[2:4]) == [("w1", "with the weights that it had"), ("w2", "")], formed
        LASTING.compare("one of two stages killed", outcome(house, names), want)
    house.clear()


def test_storm():
    storm(LONG, start, workers=3, seconds=STORM_SECONDS, generator=random.Random(SEED + 1), lease_s=LEASE_S,
          calamities=("killed", "killed", "stopped", "coordinator"))


if __name__ == "__main__":
    tell(f"seed {SEED}, {STEPS} steps")
    main([test_bytes_of_one_worker, test_what_is_seen, test_goldens, test_a_job_goes_on_on_another_number_of_stages, test_a_stage_that_lives_keeps_its_weights,
          test_storm])
