"""The training part of tools/quickstart: a daemon, a model, two datasets, four jobs, one table.

usage: quickstart_train.py --model HF_DIR --binaries BAZEL_BIN [--output DIR]
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
JOBS = sorted((ROOT / "examples/quickstart").glob("job-*.json"))
DATASETS = {"gsm8k-train": "examples/data/gsm8k_train.jsonl", "gsm8k-test": "examples/data/gsm8k_test.jsonl"}
MODEL = "smollm2-135m"


def say(text):
    print(f"\n== quickstart: {text}", file=sys.stderr, flush=True)


class Daemon:
    """`lorad serve` on a free port, with its data and its log in a folder of its own."""

    def __init__(self, binaries, folder):
        self.lora_path = binaries / "client/lora"
        self.log_path = folder / "lorad.log"
        command = [binaries / "server/lorad", "serve", "--data-dir", folder / "data", "--listen", "127.0.0.1:0"]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        first = self.process.stdout.readline().split()
        if first[:3] != ["lorad", "listening", "on"]:
            raise SystemExit(f"quickstart: lorad did not start; its log:\n{self.log_path.read_text()}")
        self.address = first[3]

    def lora(self, *arguments):
        """Runs a command of the client's; stderr passes through, stdout is returned."""
        command = [self.lora_path, "--server", self.address, *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"quickstart: lora {' '.join(map(str, arguments))} failed; the daemon's log: {self.log_path}")
        return done.stdout

    def watch(self, jobs):
        return subprocess.run([self.lora_path, "--server", self.address, "watch", *jobs]).returncode

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def loss_text(job, key):
    return "-" if job[key] is None else f"{job[key]:.4f}"


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def train(daemon, model, output):
    say(f"registering the model and the data (daemon at {daemon.address})")
    daemon.lora("model", "add", MODEL, "--path", model)
    for name, path in DATASETS.items():
        daemon.lora("dataset", "add", name, ROOT / path)
    say(f"submitting {len(JOBS)} jobs; they train packed together")
    jobs = [daemon.lora("submit", "-f", path).strip() for path in JOBS]
    began = time.monotonic()
    if daemon.watch(jobs) != 0:
        raise SystemExit(f"quickstart: not every job succeeded; the daemon's log: {daemon.log_path}")
    seconds = time.monotonic() - began

    rows = [["JOB", "RANK", "TARGETS", "LEARNING RATE", "STEPS", "TOKENS/S", "VALIDATION LOSS", "ADAPTER"]]
    packed = []
    tokens = 0
    for name in jobs:
        job = json.loads(daemon.lora("show", name, "--json"))
        adapter = output / job["display_name"]
        daemon.lora("checkpoint", "get", name, "-o", adapter)
        packed.append(job["adapters_per_microbatch"])
        tokens += job["tokens"]
        rows.append([
            job["display_name"], str(job["adapter"]["rank"]), str(len(job["adapter"]["target_modules"])),
            f"{job['training']['learning_rate']:g}", str(job["step"]), f"{job['tokens_per_second']:.0f}",
            f"{loss_text(job, 'initial_validation_loss')} -> {loss_text(job, 'validation_loss')}",
            os.path.relpath(adapter),
        ])
    print()
    print_table(rows)
    print(f"\n{tokens} tokens trained in {seconds:.0f} s ({tokens / seconds:.0f} tokens/s over all jobs, evaluations included); "
          f"adapters per microbatch: {sum(packed) / len(packed):.2f}")


def print_next_steps(model):
    print(f"""
Each adapter is a PEFT directory: peft.PeftModel.from_pretrained(model, DIR) reads it as it is.

Your own daemon and job:
  export PATH=$PWD/bazel-bin/server:$PWD/bazel-bin/client:$PATH
  lorad serve --data-dir ~/lorad-data &
  lora model add {MODEL} --path {model}
  lora dataset add my-rows ROWS.jsonl          # docs/formats/dataset.md
  lora submit -f job.json                      # begin with a copy of {os.path.relpath(JOBS[0])}
  lora watch JOB_ID && lora checkpoint get JOB_ID -o my-adapter
  lora generate JOB_ID "What is 2 + 3?"        # ask what it has learned""")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--binaries", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / ".cache/quickstart")
    options = parser.parse_args()
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorad-quickstart-"))
    daemon = Daemon(options.binaries.absolute(), folder)
    try:
        train(daemon, options.model, options.output)
    except BaseException:
        daemon.stop()
        raise
    daemon.stop()
    shutil.rmtree(folder)
    print_next_steps(options.model)


if __name__ == "__main__":
    main()
