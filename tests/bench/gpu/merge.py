"""A merged model of 8 billion parameters beside a copy of its files, both down to the disk, in the same run.

usage: merge.py [--shape NAME] [--rounds N]

Writes the base model as transformers does (random weights in bfloat16, shards of 5 GB), trains an adapter of rank 16 on all
seven projections for two steps on cuda:0, and then in turns copies the base's files and gets the merged model, each with a
sync behind it. Bars: twice the time of the copy, in the middle of the rounds, and 2 GiB of memory for daemon and client each.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))

from house import House, tell  # noqa: E402

TIMES_BAR = 2.0
MEMORY_BAR = 2 << 30
SEPARATE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WRITE = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
torch.manual_seed(1)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(sys.argv[1]), dtype=torch.bfloat16)
model.save_pretrained(sys.argv[2], max_shard_size="5GB")
"""


def write_base(shape, folder):
    subprocess.run([ROOT / "tools/make-model", shape, folder / "shape"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([sys.executable, "-c", WRITE, folder / "shape", folder / "base"], check=True)
    return folder / "base"


def train(house, base):
    house.lora("model", "add", "base", "--path", base)
    house.add_dataset("rows", [{"input_ids": list(range(i, i + 64)), "labels": list(range(i, i + 64))} for i in range(8)])
    job = house.submit({"base_model": "base", "training_dataset": "rows", "adapter": {"rank": 16, "alpha": 32, "target_modules": SEPARATE},
                        "training": {"max_steps": 2, "batch_size": 4, "max_length": 64, "learning_rate": 1e-3}})
    house.wait([job])
    return job


def timed(command):
    """(seconds with a sync behind it, bytes of memory at most); after a sync before it."""
    os.sync()
    begin = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{command} ended with {status}")
    os.sync()
    return time.perf_counter() - begin, usage.ru_maxrss << 10


def memory_max(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with House(None, "--workers", "cuda:0") as house:
        house.wait_for_worker()
        base = write_base(options.shape, house.folder)
        size = sum(file.stat().st_size for file in base.iterdir())
        job = train(house, base)
        copies, merges, client = [], [], 0
        for _ in range(options.rounds):
            copies.append(timed(["cp", "-r", base, house.folder / "copy"])[0])
            shutil.rmtree(house.folder / "copy")
            seconds, memory = timed(house.lora_command("checkpoint", "get", job, "--merged", "-o", house.folder / "merged"))
            merges.append(seconds)
            client = max(client, memory)
            merged = sum(file.stat().st_size for file in (house.folder / "merged").glob("*.safetensors"))
            assert merged == sum(file.stat().st_size for file in base.glob("*.safetensors")), "of another size than the base"
            shutil.rmtree(house.folder / "merged")
        daemon = memory_max(house.process.pid)
    house.clear()
    times = statistics.median(merges) / statistics.median(copies)
    tell(f"{size / 1e9:.2f} GB: cp and sync {', '.join(f'{s:.2f}' for s in copies)} s; merged and sync "
         f"{', '.join(f'{s:.2f}' for s in merges)} s: {times:.2f} times (bar {TIMES_BAR}); at most "
         f"{daemon / 1e6:.0f} MB in the daemon, {client / 1e6:.0f} MB in the client (bar {MEMORY_BAR / 1e6:.0f} MB)")
    if times > TIMES_BAR or max(daemon, client) > MEMORY_BAR:
        raise SystemExit("over the bar")


if __name__ == "__main__":
    main()
