"""The service on a GPU: the reference runs in fp32, and a job's bits whatever happens around it and however much of
it is computed again. Skips where there is no GPU.

usage: gpu_test.py [TEST ...]
"""

import json
import pathlib
import random
import subprocess
import sys

from formats import token_rows, write_model
from golden import run_on
from house import WORKER, House, main

DEVICE = "cuda:0"
# Losses, norms and final matrices of the fp32 mode against float32 on a CPU.
FP32_MAX = 1e-4


def has_gpu():
    lines = subprocess.run([WORKER, "--list-devices"], capture_output=True, text=True, check=True).stdout.splitlines()
    return any(line.split()[0] == DEVICE for line in lines)


def test_golden_fp32():
    beyond = {run: found for run, found in run_on(DEVICE, "fp32").items()
              if max(found["loss"], found["norm"], found["matrix"]) >= FP32_MAX}
    assert not beyond, beyond


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
    main([test_golden_fp32, test_isolation, test_recomputation, test_shorter_microbatches_make_room], lacking=None if has_gpu() else "no GPU")
