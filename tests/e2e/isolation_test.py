"""The same adapter file, bit for bit, whoever shared the machine: alone, packed, on one thread or two, with microbatches of
other sizes, with company that comes and goes, and killed again and again.

usage: isolation_test.py SEED|random STEPS [DEVICE]     DEVICE: cpu (default) or cuda:I
"""

import hashlib
import os
import random
import signal
import sys
import time

from formats import token_rows, write_model
from house import House, tell

SEED = random.SystemRandom().randrange(2**31) if sys.argv[1] == "random" else int(sys.argv[1])
STEPS = int(sys.argv[2])
DEVICE = sys.argv[3] if len(sys.argv) > 3 else "cpu"
ONE_WORKER = "cpu:1" if DEVICE == "cpu" else DEVICE

KILLS_OF_EACH = 4  # fewer than the attempts without progress that fail a job

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


def subjects():
    """The jobs whose bits must not change."""
    def job(rank, targets, batch_size, dropout, schedule, **adapter):
        return {
            "display_name": f"rank-{rank}", "base_model": "small", "training_dataset": "rows", "validation_dataset": "validation",
            "adapter": {"rank": rank, "alpha": 2 * rank, "dropout": dropout, "target_modules": targets, "seed": SEED + rank, **adapter},
            "training": {"max_steps": STEPS, "batch_size": batch_size, "max_length": 900, "learning_rate": 1e-3, "schedule": schedule,
                         "warmup_steps": 5, "weight_decay": 0.01, "shuffle": True, "seed": SEED + 7 * rank,
                         "checkpoint_every_steps": 7, "eval_every_steps": 40},
        }
    return [job(4, ["q_proj", "v_proj"], 3, 0.1, "COSINE"), job(8, ATTENTION + MLP, 2, 0.05, "LINEAR"),
            job(13, MLP, 4, 0.25, "CONSTANT"), job(64, ATTENTION + ["down_proj"], 2, 0.1, "COSINE", use_rslora=True),
            job(5, ATTENTION + MLP, 3, 0.1, "LINEAR", exclude_modules=["layers.0.mlp.up_proj", "k_proj"],
                rank_pattern={"layers.1.self_attn.q_proj": 32, "down_proj": 2}, alpha_pattern={"[vo]_proj": 40})]


def stranger(steps, rank):
    return {"display_name": "stranger", "base_model": "small", "training_dataset": "strangers",
            "adapter": {"rank": rank, "target_modules": ATTENTION + MLP, "dropout": 0.5},
            "training": {"max_steps": steps, "batch_size": 5, "max_length": 900, "learning_rate": 1e-2, "checkpoint_every_steps": 0}}


def prepare(house):
    generator = random.Random(SEED)
    house.lora("model", "add", "small", "--path", write_model(house.folder / "model", seed=SEED))
    house.add_dataset("rows", token_rows(generator, 37))
    house.add_dataset("strangers", token_rows(generator, 29))
    house.add_dataset("validation", token_rows(generator, 5))


def outcome(house, names):
    """What must not change: the adapter's bytes, and every figure of every step."""
    found = []
    for name in names:
        adapter = (house.adapter(name) / "adapter_model.safetensors").read_bytes()
        steps = [(s["step"], s["loss"], s["grad_norm"], s["learning_rate"]) for s in house.objects("metrics", name)]
        evaluations = [(e["step"], e["validation_loss"]) for e in house.objects("metrics", name, "--evaluation")]
        found.append((hashlib.sha256(adapter).hexdigest(), steps, evaluations))
    return found


def packing(jobs):
    mean = sum(job["adapters_per_microbatch"] for job in jobs) / len(jobs)
    tell(f"    adapters per microbatch: " + ", ".join(f"{j['display_name']} {j['adapters_per_microbatch']:.2f}" for j in jobs) + f"; mean {mean:.2f}")
    return mean


def compare(what, got, want):
    for job, one, other in zip(subjects(), got, want, strict=True):
        name = job["display_name"]
        for (step, *a), (_, *b) in zip(one[1], other[1], strict=True):
            assert a == b, f"{what}: {name}: step {step}: {a}, alone {b}"
        assert one[2] == other[2], f"{what}: {name}: evaluations {one[2]}, alone {other[2]}"
        assert one[0] == other[0], f"{what}: {name}: the adapter's bytes differ"
    tell(f"    {what}: {len(got)} adapters equal, bit for bit")


def alone():
    with House(None, "--workers", ONE_WORKER, "--worker-threads", 1, "--microbatch-tokens", 1024) as house:
        prepare(house)
        names = []
        for job in subjects():
            names.append(house.submit(job))
            (done,) = house.wait(names[-1:])
            assert done["adapters_per_microbatch"] == 1
        found = outcome(house, names)
    house.clear()
    return found


def packed():
    """Four jobs in wide microbatches on two threads."""
    with House(None, "--workers", "none", "--microbatch-tokens", 4096) as house:
        prepare(house)
        names = [house.submit(job) for job in subjects()]
        house.start_worker("--device", DEVICE, "--threads", 2)
        assert packing(house.wait(names)) >= 2, "four jobs must share microbatches"
        found = outcome(house, names)
    house.clear()
    return found


def with_company():
    """Strangers that are there from the start and leave, that come in mid-run, and that are cancelled."""
    with House(None, "--workers", "none", "--microbatch-tokens", 1337) as house:
        prepare(house)
        early = house.submit(stranger(STEPS // 4, 16))
        names = [house.submit(job) for job in subjects()]
        house.start_worker("--device", DEVICE, "--threads", 2)
        house.wait(names[:1], until=lambda job: job["step"] >= STEPS // 3 or job["state"] == "SUCCEEDED")
        late = house.submit(stranger(10 * STEPS, 32))
        house.wait(names[:1], until=lambda job: job["step"] >= 2 * STEPS // 3 or job["state"] == "SUCCEEDED")
        house.lora("cancel", late)
        packing(house.wait(names))
        house.wait([early])
        house.wait([late], state="CANCELLED")
        found = outcome(house, names)
    house.clear()
    return found


def killed(undisturbed_seconds):
    """SIGKILL to the worker and to the coordinator at random times; whoever is gone is started again. Half of the kills wait
    for a step to be done, the others may meet a start or a group that is being formed."""
    generator = random.Random(SEED + 1)
    order = ["worker", "coordinator"] * KILLS_OF_EACH
    generator.shuffle(order)
    with House(None, "--workers", ONE_WORKER, "--worker-threads", 2, "--microbatch-tokens", 2000) as house:
        prepare(house)
        names = [house.submit(job) for job in subjects()]
        for number, victim in enumerate(order):
            if number % 2 == 0:
                seen = house.object("show", names[0])["step"]
                house.wait(names[:1], until=lambda job: job["step"] > seen or job["state"] == "SUCCEEDED")
            # Short enough that all kills come before the jobs end, also where starts take long.
            time.sleep(generator.uniform(0, undisturbed_seconds / 20))
            if victim == "coordinator":
                house.kill()
                house.start()
            else:
                kill_worker(house)
        live = sum(job["state"] != "SUCCEEDED" for job in house.objects("ls"))
        assert live, "the jobs ended before the last kill"
        packing(house.wait(names, seconds=900))
        attempts = [job["attempts"] for job in house.objects("ls")]
        tell(f"    killed: worker and coordinator {KILLS_OF_EACH} times each, {live} jobs outlived the last; attempts {attempts}")
        for name in names:
            reasons = {event["reason"] for event in house.objects("events", name)}
            assert "NUMERICS_MISMATCH" not in reasons, f"{name}: a step done again had other figures"
        found = outcome(house, names)
    house.clear()
    return found


def kill_worker(house, seconds=60):
    """The one worker there is; waits for it while it is being started."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid in house.worker_pids():
            try:
                os.kill(pid, signal.SIGKILL)
                return
            except ProcessLookupError:
                pass  # it is being started again just now
        time.sleep(0.02)
    raise AssertionError("there is no worker to kill")


def main():
    tell(f"seed {SEED}, {STEPS} steps")

    def timed(way, *arguments):
        began = time.monotonic()
        found = way(*arguments)
        return found, time.monotonic() - began
    want, seconds = timed(alone)
    tell(f"    alone, one thread: {seconds:.0f} s")
    got, packed_seconds = timed(packed)
    compare(f"packed ({packed_seconds:.0f} s)", got, want)
    got, seconds = timed(with_company)
    compare(f"with company ({seconds:.0f} s)", got, want)
    got, seconds = timed(killed, packed_seconds)
    compare(f"killed ({seconds:.0f} s)", got, want)


if __name__ == "__main__":
    main()
