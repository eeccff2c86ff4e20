"""Who trains where on two GPUs: what a second one is worth to sixteen jobs of one base model, and whether a GPU idles while
jobs of two base models wait. Skips where there are not two GPUs.

usage: gpu_cluster_test.py [TEST ...]
"""

import contextlib
import json
import random
import subprocess
import threading
import time

from house import ROOT, WORKER, House, main, tell

DEVICES = ("cuda:0", "cuda:1")
BOTH = "cuda:0,1"
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BATCH, LENGTH = 2, 1024
SPEEDUP_MIN = 1.95
IDLE_SECONDS_MAX = 5
MEASURED_SECONDS = 60


def count_gpus():
    lines = subprocess.run([WORKER, "--list-devices"], capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(line.startswith("cuda:") for line in lines)


def name_of(shape):
    return shape.replace(".", "-")


def add_model(house, shape):
    """Of that shape, with random weights, and as many rows of its own vocabulary, every token of which is trained."""
    directory = house.folder / shape
    subprocess.run([ROOT / "tools/make-model", shape, directory], check=True, stdout=subprocess.DEVNULL)
    vocabulary = json.loads((directory / "config.json").read_text())["vocab_size"]
    house.lora("model", "add", name_of(shape), "--path", directory)
    draw = random.Random(1)
    rows = [[draw.randrange(vocabulary) for _ in range(LENGTH)] for _ in range(32)]
    house.add_dataset(f"rows-{name_of(shape)}", [{"input_ids": ids, "labels": ids} for ids in rows])


def job(shape, seed, steps):
    return {"base_model": name_of(shape), "training_dataset": f"rows-{name_of(shape)}",
            "adapter": {"rank": 16, "alpha": 32, "target_modules": LINEARS, "seed": seed},
            "training": {"max_steps": steps, "batch_size": BATCH, "max_length": LENGTH, "learning_rate": 1e-4,
                         "schedule": "CONSTANT", "seed": seed, "checkpoint_every_steps": 0}}


def wait_for(what, seconds, predicate):
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, f"not within {seconds} s: {what()}"
        time.sleep(0.2)


def split(house):
    return sorted(len(group["jobs"]) for group in house.object("cluster")["groups"])


def tokens_per_second(house, names, seconds):
    """Of all jobs together: each from one end of a step of its own to another."""
    first, last = {}, {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        now = time.monotonic()
        for seen in house.objects("ls"):
            name, step = seen["name"], seen["step"]
            if name in last and step > last[name][1]:
                first.setdefault(name, (now, step))
                last[name] = (now, step)
            last.setdefault(name, (now, step))
        time.sleep(0.02)
    assert set(first) >= set(names), "a job does not get on"
    return sum(BATCH * LENGTH * (last[name][1] - first[name][1]) / (last[name][0] - first[name][0]) for name in names)


def test_a_second_gpu_doubles_the_speed():
    with House(None, "--workers", "none") as house:
        add_model(house, "llama-3.1-8b")
        names = [house.submit(job("llama-3.1-8b", seed, 100_000)) for seed in range(16)]
        house.start_worker("--name", "first", "--device", DEVICES[0])

        def all_run():
            return all(house.object("show", name)["step"] >= 2 for name in names)
        wait_for(lambda: f"16 on one: {split(house)}", 180, lambda: split(house) == [16] and all_run())
        alone = tokens_per_second(house, names, MEASURED_SECONDS)
        house.start_worker("--name", "second", "--device", DEVICES[1])
        began = time.monotonic()
        # A ninth stays where it is: what its move would gain is less than the least that pays.
        wait_for(lambda: f"8 on each, or 7 and 9: {split(house)}", 120, lambda: split(house) in ([8, 8], [7, 9]))
        steps = {name: house.object("show", name)["step"] for name in names}
        wait_for(lambda: "all go on", 60, lambda: all(house.object("show", name)["step"] > steps[name] + 1 for name in names))
        came = time.monotonic() - began
        both = tokens_per_second(house, names, MEASURED_SECONDS)
        tell(f"    16 jobs of Llama-3.1-8B's shape, {BATCH} x {LENGTH} a step: {alone:,.0f} tokens/s on one GPU, {both:,.0f} on two, "
             f"{both / alone:.3f} times as many (bar {SPEEDUP_MIN}); all trained {came:.0f} s after the second worker was started")
        for name in names:
            house.lora("cancel", name)
        assert both >= SPEEDUP_MIN * alone, both / alone
    house.clear()


class Utilization:
    """Samples what the driver says of both GPUs. `with` begins and ends it."""

    def __enter__(self):
        self.samples = []  # (seconds, percent of each)
        self.process = subprocess.Popen(
            ["nvidia-smi", "--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=250"],
            stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.read, daemon=True).start()
        return self

    def read(self):
        percent = {}
        for line in self.process.stdout:
            index, value = line.split(",")
            percent[int(index)] = int(value)
            if len(percent) == len(DEVICES):
                self.samples.append((time.monotonic(), percent))
                percent = {}

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def longest_idle(self, begin, end):
        """Seconds in a row in which one of the GPUs did nothing."""
        longest = 0
        for gpu in range(len(DEVICES)):
            since = begin
            for now, percent in self.samples:
                if begin <= now <= end and percent[gpu] > 0:
                    longest, since = max(longest, now - since), now
            longest = max(longest, end - since)
        return longest


def test_no_gpu_idles_while_jobs_wait():
    """Two base models of different size, eight jobs each, sent mixed; a group takes as many as fill its microbatches."""
    shapes = ("tinyllama-1.1b", "qwen2.5-3b")
    draw = random.Random(5)
    with House(None, "--workers", BOTH, "--least-gain", "0.05") as house:
        for shape in shapes:
            add_model(house, shape)
        wait_for(lambda: "two workers", 60, lambda: house.object("cluster")["workers"] == 2)
        order = [shape for shape in shapes for _ in range(8)]
        draw.shuffle(order)
        with Utilization() as utilization:
            names = [house.submit(job(shape, seed, draw.randint(150, 450) if shape == shapes[0] else draw.randint(50, 150)))
                     for seed, shape in enumerate(order)]
            wait_for(lambda: "both train", 60, lambda: len(house.object("cluster")["groups"]) == 2 and all(
                group["microbatches"] > 0 for group in house.object("cluster")["groups"]))
            begin, waited = time.monotonic(), False
            states = {}

            def nobody_waits():
                nonlocal waited
                states.update({seen["name"]: seen["state"] for seen in house.objects("ls")})
                waiting = [name for name in names if states[name] in ("VALIDATING", "QUEUED", "PREPARING")]
                waited = waited or len(waiting) > 0
                return not waiting
            wait_for(lambda: f"the queue is empty: {states}", 300, nobody_waits)
            end = time.monotonic()
        idle = utilization.longest_idle(begin, end)
        tell(f"    16 jobs of two base models: the queue was empty after {end - begin:.0f} s; longest time that a GPU idled "
             f"meanwhile {idle:.1f} s (bar {IDLE_SECONDS_MAX} s)")
        assert waited, "nobody waited, so nothing is shown"
        assert idle <= IDLE_SECONDS_MAX, idle
        for name in names:
            with contextlib.suppress(Exception):
                house.lora("cancel", name)
    house.clear()


if __name__ == "__main__":
    main([test_a_second_gpu_doubles_the_speed, test_no_gpu_idles_while_jobs_wait],
         lacking=None if count_gpus() >= len(DEVICES) else "fewer than two GPUs")
