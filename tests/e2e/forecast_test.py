"""When jobs start and end, as forecasts say it, and how true that comes, on real processes.

usage: forecast_test.py [TEST...]
"""

import datetime
import json
import os
import random
import time
from statistics import mean

from formats import token_rows, write_model
from house import House, Skipped, main, running_seconds, tell

JOBS = 50
WARM_JOBS = 6
OFF_MAX = 0.3  # of what a job that trains is still to take
ALONE_FACTOR_MAX = 1.25  # from the time that a job takes alone to its end where nobody else is there
UNLIKE_FACTOR_MAX = 1.5  # from what is foretold of a job of a rank or length that was never seen to what it took: 3 where neither counts
ALL_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
OTHERS_MAX = 0.15  # of the machine's processors


def job(steps, seed, rank=4, batch_size=2, priority=0):
    return {"base_model": "small", "training_dataset": "rows", "priority": priority,
            "adapter": {"rank": rank, "target_modules": ["q_proj", "v_proj"], "seed": seed},
            "training": {"max_steps": steps, "batch_size": batch_size, "max_length": 300, "learning_rate": 1e-3,
                         "seed": seed, "checkpoint_every_steps": 0}}


def prepare(house):
    house.lora("model", "add", "small", "--path", write_model(house.folder / "model"))
    house.add_dataset("rows", token_rows(random.Random(1), 30))


def moment(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def ended(house, names):
    return all(house.object("show", name)["state"] == "SUCCEEDED" for name in names)


def wait_for(what, seconds, predicate):
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def is_inside(said, what, seconds):
    """By the coordinator's clock, and what a command line takes to ask."""
    return moment(said[f"{what}_earliest"]) - 0.1 <= seconds <= moment(said[f"{what}_latest"]) + 0.1


class Others:
    """How much of the machine's processors other work takes, and of the time it stands still: a forecast goes by how fast the machine
    was."""

    def __init__(self, house):
        self.house = house
        self.began, self.ran = time.monotonic(), running_seconds()
        self.busy, self.own = self.all_seconds(), self.own_seconds()

    @staticmethod
    def all_seconds():
        fields = [int(field) for field in open("/proc/stat").readline().split()[1:9]]
        return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # without idle and waiting

    def own_seconds(self):
        ticks = 0
        for pid in [self.house.process.pid, *self.house.worker_pids()]:
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK") + sum(os.times()[:4])

    def share(self):
        others = self.all_seconds() - self.busy - (self.own_seconds() - self.own)
        seconds = time.monotonic() - self.began
        stood = seconds - (running_seconds() - self.ran)
        return others / (os.cpu_count() * seconds) + stood / seconds


def test_forecasts_come_true():
    """50 jobs of many lengths on two busy workers, most of which wait: what `lora estimate` says of each once all are there.
    Says nothing on a machine that had other work to do as well."""
    draw = random.Random(7)
    with House(None, "--workers", "cpu:2", "--worker-threads", "1", "--least-gain", "0.1") as house:
        prepare(house)
        wait_for("two workers", 30, lambda: len(house.worker_pids()) == 2)
        others = Others(house)
        warm = [house.submit(job(steps=400, seed=seed)) for seed in range(WARM_JOBS)]
        wait_for("the first jobs end", 120, lambda: ended(house, warm))
        names = [house.submit(job(steps=draw.randint(300, 1500), seed=seed, batch_size=draw.choice([1, 2, 4])))
                 for seed in range(JOBS)]
        forecasts = {}
        for name in names:
            result = house.run("estimate", name, "--json")
            if result.status == 0:
                forecasts[name] = result.objects()[0]["forecast"]
        wait_for("all jobs end", 400, lambda: ended(house, names))
        start_errors, end_errors, inside, count = [], [], 0, 0
        for name, said in forecasts.items():
            assert said, f"nothing was foreseen of {name}"
            seen = house.object("show", name)
            for what, errors in (("start", start_errors), ("end", end_errors)):
                if not said[f"{what}_time"]:
                    continue  # it ran already
                actual, foretold = moment(seen[f"{what}_time"]), moment(said[f"{what}_time"])
                errors.append(abs(actual - foretold) / max(foretold - moment(said["make_time"]), 1))
                count += 1
                inside += is_inside(said, what, actual)
        tell(f"    {len(forecasts)} jobs: {len(start_errors)} starts off by {mean(start_errors):.0%}, "
             f"{len(end_errors)} ends by {mean(end_errors):.0%} in the mean; {inside} of {count} within their interval")
        cluster = house.object("cluster")
        tell(f"    first forecasts, made as each job came: starts {cluster['start_errors']}, ends {cluster['end_errors']}")
        assert len(start_errors) >= JOBS / 2, "too few waited"
        share = others.share()
        tell(f"    other work took {share:.0%} of the machine meanwhile")
        if inside < 0.9 * count and share > OTHERS_MAX:
            raise Skipped(f"{inside} of {count} within their interval, but the machine was not at one speed: other work took {share:.0%} of it")
        assert inside >= 0.9 * count, (inside, count)
    house.clear()


def test_a_waiting_job_says_when():
    with House(None, "--workers", "none") as house:
        prepare(house)
        first = house.submit(job(steps=1500, seed=1))  # some seconds, so that it is caught as it runs
        assert not (house.object("show", first)["queue"] or {}).get("forecast"), "no worker is there"
        house.start_worker("--name", "w0", "--threads", "1")
        wait_for("it runs", 30, lambda: house.object("show", first)["state"] == "RUNNING")
        running = house.object("estimate", first)
        assert not running["forecast"]["start_time"], running
        assert moment(running["forecast"]["end_time"]) > moment(running["forecast"]["make_time"])
        assert [worker["worker"] for worker in running["workers"]] == ["w0"], running
        assert "ends" in house.lora("estimate", first).out
        wait_for("it ends", 60, lambda: ended(house, [first]))
        refused = house.run("estimate", first)
        assert refused.status != 0 and "JOB_ENDED" in refused.err, refused
    house.clear()


def test_jobs_that_train_say_when():
    """On one worker, and on two as stages: small jobs, whose rounds are mostly what no time model knows. Says nothing on a
    machine that had other work to do as well."""
    for stages in (1, 2):
        with House(None, "--workers", f"cpu:{stages}", "--worker-threads", "1") as house:
            prepare(house)
            house.lora("model", "update", "small", "--stages", stages)
            wait_for("the workers", 30, lambda: len(house.worker_pids()) == stages)
            others = Others(house)
            names = [house.submit(job(steps=steps, seed=steps)) for steps in (3000, 4000)]
            wait_for("a fifth is done", 120, lambda: all(house.object("show", name)["step"] >= 800 for name in names))
            said = {name: house.object("estimate", name)["forecast"] for name in names}
            wait_for("they end", 300, lambda: ended(house, names))
            off = []
            for name in names:
                foretold = moment(said[name]["end_time"]) - moment(said[name]["make_time"])
                took = moment(house.object("show", name)["end_time"]) - moment(said[name]["make_time"])
                off.append(foretold / took - 1)
            share = others.share()
            tell(f"    {stages} stages: ends foreseen with 2,200 and 3,200 steps to go off by {off[0]:+.0%} and {off[1]:+.0%}; other "
                 f"work took {share:.0%} of the machine")
            if max(map(abs, off)) > OFF_MAX and share > OTHERS_MAX:
                raise Skipped(f"off by {off}, but the machine was not at one speed: other work took {share:.0%} of it")
            assert max(map(abs, off)) <= OFF_MAX, off
        house.clear()


def test_jobs_that_are_evaluated_say_when():
    """One that is evaluated after every other step, on a worker that has trained before: forward passes over 24 rows are most of
    its time. Before it is created its end is as far away as it takes alone; when a fifth is done, as it comes true. Of the latter
    it says nothing on a machine that had other work to do as well."""
    with House(None, "--workers", "cpu:1", "--worker-threads", "1") as house:
        prepare(house)
        house.add_dataset("valid", token_rows(random.Random(2), 24))
        wait_for("the worker", 30, lambda: len(house.worker_pids()) == 1)
        evaluated = job(steps=1500, seed=1)
        evaluated["validation_dataset"] = "valid"
        evaluated["training"]["eval_every_steps"] = 2
        warm = house.submit({**evaluated, "training": {**evaluated["training"], "max_steps": 100}})
        wait_for("the first job ends", 120, lambda: ended(house, [warm]))
        path = house.folder / "evaluated.json"
        path.write_text(json.dumps(evaluated))
        others = Others(house)
        before = house.object("estimate", "-f", path)
        foretold = moment(before["forecast"]["end_time"]) - moment(before["forecast"]["make_time"])
        tell(f"    alone {before['seconds']:.1f} s, ends in {foretold:.1f} s")
        assert 1 / ALONE_FACTOR_MAX < foretold / before["seconds"] < ALONE_FACTOR_MAX, before
        name = house.submit(evaluated)
        wait_for("a fifth is done", 240, lambda: house.object("show", name)["step"] >= 300)
        said = house.object("estimate", name)["forecast"]
        left = house.object("show", name)["seconds_left"]
        wait_for("it ends", 400, lambda: ended(house, [name]))
        took = moment(house.object("show", name)["end_time"]) - moment(said["make_time"])
        off = [(moment(said["end_time"]) - moment(said["make_time"])) / took - 1, left / took - 1]
        inside = is_inside(said, "end", moment(house.object("show", name)["end_time"]))
        share = others.share()
        tell(f"    1,200 steps to go and 600 evaluations: its end off by {off[0]:+.0%}, its time left by {off[1]:+.0%}, "
             f"{'with' if inside else 'out of'}in its interval; other work took {share:.0%} of the machine")
        if (max(map(abs, off)) > OFF_MAX or not inside) and share > OTHERS_MAX:
            raise Skipped(f"off by {off}, but the machine was not at one speed: other work took {share:.0%} of it")
        assert max(map(abs, off)) <= OFF_MAX and inside, (off, inside)
    house.clear()


def test_unlike_ranks_and_lengths():
    """What is foretold of a job of a rank, or of rows of a length, that no job had before it; and what is foretold of a small one
    after them. Says nothing on a machine that had other work to do as well."""
    with House(None, "--workers", "cpu:1", "--worker-threads", "1") as house:
        model = write_model(house.folder / "model", hidden=192, layers=3, heads=6, kv_heads=3, ffn=512)
        house.lora("model", "add", "small", "--path", model)
        rng = random.Random(3)
        house.add_dataset("rows", token_rows(rng, 30))
        house.add_dataset("long", [row for row in token_rows(rng, 600, longest=400) if len(row["input_ids"]) > 300])
        wait_for("the worker", 30, lambda: len(house.worker_pids()) == 1)
        house.wait([house.submit(job(steps=150, seed=1))])
        path = house.folder / "unlike.json"
        wide = job(steps=60, seed=2, rank=256)
        wide["adapter"]["target_modules"] = ALL_TARGETS
        long = job(steps=60, seed=3)
        long["training_dataset"], long["training"]["max_length"] = "long", 400
        for what, one in (("rank 256", wide), ("rows of over 300 tokens", long), ("rank 4 again", job(steps=200, seed=4))):
            path.write_text(json.dumps(one))
            others = Others(house)
            said = house.object("estimate", "-f", path)
            ends = moment(said["forecast"]["end_time"]) - moment(said["forecast"]["make_time"])
            (seen,) = house.wait([house.submit(one)])
            took = moment(seen["end_time"]) - moment(seen["create_time"])
            share = others.share()
            tell(f"    {what}: {said['seconds']:.1f} s alone, ends in {ends:.1f} s; took {took:.1f} s ({said['seconds_basis']}); other "
                 f"work took {share:.0%} of the machine")
            assert 1 / ALONE_FACTOR_MAX < ends / said["seconds"] < ALONE_FACTOR_MAX, said
            if not 1 / UNLIKE_FACTOR_MAX < took / ends < UNLIKE_FACTOR_MAX and share > OTHERS_MAX:
                raise Skipped(f"{took / ends} times as long, but the machine was not at one speed: other work took {share:.0%} of it")
            assert 1 / UNLIKE_FACTOR_MAX < took / ends < UNLIKE_FACTOR_MAX, (what, took, ends)
    house.clear()


if __name__ == "__main__":
    main([test_forecasts_come_true, test_a_waiting_job_says_when, test_jobs_that_train_say_when, test_jobs_that_are_evaluated_say_when,
          test_unlike_ranks_and_lengths])
