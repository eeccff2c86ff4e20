"""Who trains where, on real processes: jobs spread over all workers in any order of arrival, a worker that comes late has
its share, and one of higher priority begins at once.

usage: placement_test.py [TEST...]
"""

import json
import random
import time

from formats import token_rows, write_model
from house import House, main, running_seconds, tell

WORKERS = 4
JOBS = 16
MICROBATCH_TOKENS = 100  # of large jobs, as long as their longest rows


def job(steps=20000, seed=1, priority=0, max_length=300, **training):
    return {"base_model": "small", "training_dataset": "rows", "priority": priority,
            "adapter": {"rank": 4, "target_modules": ["q_proj", "v_proj"], "seed": seed},
            "training": {"max_steps": steps, "batch_size": 2, "max_length": max_length, "learning_rate": 1e-3, "seed": seed,
                         "checkpoint_every_steps": 0, **training}}


def prepare(house):
    house.lora("model", "add", "small", "--path", write_model(house.folder / "model"))
    house.add_dataset("rows", token_rows(random.Random(1), 30))
    house.add_dataset("short", token_rows(random.Random(2), 30, longest=MICROBATCH_TOKENS))


def split(house):
    """Jobs on each worker, the most first."""
    return sorted((len(group["jobs"]) for group in house.object("cluster")["groups"]), reverse=True)


def wait_for(house, what, seconds, predicate):
    end = running_seconds() + seconds
    while not predicate():
        assert running_seconds() < end, f"{what}: {split(house)}"
        time.sleep(0.1)


def wait_for_workers(house, count):
    wait_for(house, f"{count} workers", 30, lambda: house.object("cluster")["workers"] == count)


def even(house):
    return split(house) == [JOBS // WORKERS] * WORKERS


def test_sent_together_before_the_workers_come():
    with House(None, "--workers", "none") as house:
        prepare(house)
        for seed in range(JOBS):
            house.submit(job(seed=seed))
        for i in range(WORKERS):
            house.start_worker("--name", f"w{i}", "--threads", "1")
        wait_for(house, "an even split", 60, lambda: even(house))
    house.clear()


def test_sent_one_by_one():
    with House(None, "--workers", f"cpu:{WORKERS}", "--worker-threads", "1") as house:
        prepare(house)
        wait_for_workers(house, WORKERS)
        for seed in range(JOBS):
            house.submit(job(seed=seed))
            time.sleep(0.1 if seed % 3 else 0.4)
        wait_for(house, "an even split", 20, lambda: even(house))
    house.clear()


def moves_of(house, names):
    return [sum(event["reason"] == "MOVED" for event in house.objects("events", name)) for name in names]


def test_a_late_worker_has_its_share():
    with House(None, "--workers", "none") as house:
        prepare(house)
        for i in range(WORKERS - 1):
            house.start_worker("--name", f"w{i}", "--threads", "1")
        wait_for_workers(house, WORKERS - 1)  # else jobs move to those that come after the first
        names = [house.submit(job(seed=seed)) for seed in range(12)]
        wait_for(house, "all run", 60, lambda: split(house) == [4, 4, 4])
        moved = sum(moves_of(house, names))
        house.start_worker("--name", "late", "--threads", "1")
        wait_for_workers(house, WORKERS)
        begin = time.monotonic()
        wait_for(house, "a share for the late one", 10, lambda: split(house) == [3, 3, 3, 3])
        tell(f"    its share after {time.monotonic() - begin:.1f} s")
        moves = moves_of(house, names)
        assert max(moves) == 1, moves
        assert sum(moves) - moved <= 4, (moved, moves)
    house.clear()


def room_for(house, job, count, gpu=False):
    """Bytes of a worker that holds so many of these jobs and no more, whatever is computed again."""
    path = house.folder / "sized.json"
    path.write_text(json.dumps(job))
    memory = house.object("estimate", "-f", path)["peak_memory_bytes"]
    # On a CPU with the copy that is being saved, values and moments; on a GPU that lies on the host.
    of_slot = (1 if gpu else 4) * memory["adapters"] + memory["optimizer"]
    assert of_slot > 2 * memory["activations"], memory  # else there might be room for one more, with less of these
    return int(1.03 * (memory["total"] + (count - 1) * of_slot) + of_slot / 4)


def large_job(**keywords):
    """Of which memory holds few: an adapter that is larger than what a microbatch needs."""
    made = job(max_length=MICROBATCH_TOKENS, **keywords) | {"training_dataset": "short"}
    made["adapter"] |= {"rank": 64, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
    return made


def test_a_job_of_higher_priority_begins_at_once():
    """On a full cluster: its first step is done, so its first Forward began, within 2 s and the longest step (which holds a
    microbatch) of its acknowledgement."""
    with House(None, "--workers", "none", "--microbatch-tokens", MICROBATCH_TOKENS) as house:
        prepare(house)
        house.start_worker("--name", "sized", "--threads", "1")
        wait_for_workers(house, 1)
        room = room_for(house, large_job(), 2)
        house.end_workers()
        for i in range(2):
            house.start_worker("--name", f"w{i}", "--threads", "1", "--memory", room)
        running = [house.submit(large_job(seed=seed)) for seed in range(4)]
        wait_for(house, "a full cluster", 60, lambda: split(house) == [2, 2])
        waits = house.submit(large_job(seed=7))
        house.wait(running, until=lambda job: job["step"] >= 20)
        assert house.object("show", waits)["state"] == "QUEUED"
        longest = max(step["step_time_ms"] for name in running for step in house.objects("metrics", name)) / 1000
        urgent = house.submit(large_job(seed=9, priority=5, steps=40))
        acknowledged = running_seconds()
        while house.object("show", urgent)["step"] < 1:
            assert running_seconds() < acknowledged + 60, house.object("show", urgent)
            time.sleep(0.01)
        seconds = running_seconds() - acknowledged
        victims = [name for name in running if any(event["reason"] == "EVICTED" for event in house.objects("events", name))]
        tell(f"    its first step was done {1000 * seconds:.0f} ms after its acknowledgement; the longest step before took {1000 * longest:.0f} ms")
        assert len(victims) == 1, victims
        assert seconds < 2 + longest, seconds
        house.wait([urgent])
    house.clear()


if __name__ == "__main__":
    main([test_sent_together_before_the_workers_come, test_sent_one_by_one, test_a_late_worker_has_its_share,
          test_a_job_of_higher_priority_begins_at_once])
