"""The service on a GPU: the reference runs in fp32 and in bf16, and a job's bits whatever happens around it and
however much of it is computed again. Skips where there is no GPU.

usage: gpu_test.py [TEST ...]
"""

import json
import pathlib
import random
import subprocess
import sys

from formats import token_rows, write_model
from golden import RUNS, differences, job_of, prepare
from house import GOLDEN, ROOT, WORKER, House, Skipped, main, tell

DEVICE = "cuda:0"
# Losses of the fp32 mode against float32 on a CPU.
FP32_LOSS_MAX = 1e-4
# Against what PEFT's own bf16 run differs by.
BF16_RATIO_MAX = 2


def has_gpu():
    lines = subprocess.run([WORKER, "--list-devices"], capture_output=True, text=True, check=True).stdout.splitlines()
    return any(line.split()[0] == DEVICE for line in lines)


def run_golden(precision):
    """{(model, run): differences}, the jobs of a model packed together."""
    with House(None, "--workers", "none") as house:
        prepare(house)
        jobs = {house.submit(job_of(model, run)): (model, run) for model, runs in RUNS.items() for run in runs}
        house.start_worker("--device", DEVICE, "--precision", precision)
        done = house.wait(list(jobs))
        packed = [job for job in done if len(RUNS[jobs[job["name"]][0]]) > 1]
        assert all(job["adapters_per_microbatch"] > 1.5 for job in packed), "the jobs of one model were not packed"
        found = {jobs[job["name"]]: differences(house, job["name"], *jobs[job["name"]]) for job in done}
    house.clear()
    return found


def test_golden_fp32():
    for found in run_golden("fp32").values():
        assert found["loss"] < FP32_LOSS_MAX


def test_golden_bf16():
    if subprocess.run([sys.executable, "-c", "import peft, torch, transformers"], capture_output=True).returncode != 0:
        raise Skipped("needs torch, transformers and peft")
    script = ROOT / "tests/golden/peft_bf16.py"
    peer = subprocess.run([sys.executable, script, GOLDEN], capture_output=True, text=True)
    if peer.returncode != 0:
        raise AssertionError(f"PEFT's run in bf16 failed:\n{peer.stderr[-2000:]}")
    peft = json.loads(peer.stdout.splitlines()[-1])
    worst = {what: 0.0 for what in ("loss", "matrix")}
    for (model, run), found in run_golden("bf16").items():
        theirs = peft[f"{model.replace('-', '_')}/{run}"]
        tell(f"        PEFT in bf16: " + ", ".join(f"{what} {value:.1e}" for what, value in theirs.items()))
        for what in worst:
            worst[what] = max(worst[what], found[what] / theirs[what])
    tell("    most, over PEFT's: " + ", ".join(f"{what} {ratio:.2f}" for what, ratio in worst.items()))
    assert all(ratio <= BF16_RATIO_MAX for ratio in worst.values())


def test_isolation():
    script = pathlib.Path(__file__).with_name("isolation_test.py")
    subprocess.run([sys.executable, script, "20260101", "100", DEVICE], check=True)


def test_recomputation():
    subprocess.run([sys.executable, pathlib.Path(__file__).with_name("recomputation_test.py"), DEVICE], check=True)


def test_shorter_microbatches_make_room():
    """A group in all its worker's memory is formed again for a job that does not fit: both go on, with their bits."""
    def job_of_deep(rank, targets, steps):
        return {"base_model": "deep", "training_dataset": "rows", "adapter": {"rank": rank, "dropout": 0.1, "target_modules": targets},
                "training": {"max_steps": steps, "batch_size": 3, "max_length": 900, "learning_rate": 1e-3}}

    def prepare_deep(house):
        house.lora("model", "add", "deep", "--path", write_model(house.folder / "model", layers=8))
        house.add_dataset("rows", token_rows(random.Random(1), 20))
        house.wait_for_worker()

    small = job_of_deep(8, ["q_proj"], 4000)
    large = job_of_deep(64, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], 8)
    with House(None, "--workers", DEVICE) as house:
        prepare_deep(house)
        path = house.folder / "job.json"
        path.write_text(json.dumps(small))
        memory = house.object("estimate", "-f", path)["peak_memory_bytes"]
        alone = house.submit(large)
        house.wait([alone])
        want = (house.adapter(alone) / "adapter_model.safetensors").read_bytes()
    house.clear()
    # Room for eight small ones, as a group is formed with, is none for a small and a large one.
    room = int(1.03 * (memory["total"] + 7 * (memory["adapters"] + memory["optimizer"])))
    with House(None, "--workers", DEVICE, "--worker-memory", room) as house:
        prepare_deep(house)
        first = house.submit(small)
        house.wait([first], until=lambda job: job["step"] > 5)
        second = house.submit(large)
        house.wait([second])
        (running,) = house.wait([first], until=lambda job: job["state"] == "RUNNING")
        assert running["attempts"] == 2 and "to make room" in house.lora("events", first).out, running
        assert (house.adapter(second) / "adapter_model.safetensors").read_bytes() == want, "the adapter's bytes differ"
        house.lora("cancel", first)
    house.clear()


if __name__ == "__main__":
    main([test_golden_fp32, test_golden_bf16, test_isolation, test_recomputation,
          test_shorter_microbatches_make_room], lacking=None if has_gpu() else "no GPU")
