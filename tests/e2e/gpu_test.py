"""The service on a GPU: the reference runs in fp32 and in bf16, and a job's bits whatever happens around it and
however much of it is computed again. Skips where there is no GPU.

usage: gpu_test.py [TEST ...]
"""

import json
import pathlib
import subprocess
import sys

from golden import RUNS, differences, job_of, prepare
from house import GOLDEN, ROOT, WORKER, House, main, tell

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
        assert all(job["adapters_per_microbatch"] > 1.5 for job in done), "the jobs of one model were not packed"
        found = {jobs[job["name"]]: differences(house, job["name"], *jobs[job["name"]]) for job in done}
    house.clear()
    return found


def test_golden_fp32():
    for found in run_golden("fp32").values():
        assert found["loss"] < FP32_LOSS_MAX


def test_golden_bf16():
    if subprocess.run([sys.executable, "-c", "import peft, torch, transformers"], capture_output=True).returncode != 0:
        tell("    skipped: needs torch, transformers and peft")
        return
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


if __name__ == "__main__":
    if not has_gpu():
        tell("skipped: no GPU")
        sys.exit(0)
    main([test_golden_fp32, test_golden_bf16, test_isolation, test_recomputation])
