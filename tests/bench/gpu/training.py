"""Tokens a second on one GPU through the running daemon, beside PEFT on torch in the same run.

usage: training.py [--setting NAME ...] [--steps N] [--microbatch-tokens N] [--no-peft] [--json FILE] [--trace FOLDER]     (--list names the settings)

Starts `lorad serve --workers cuda:0`, registers models of published shapes with random weights (tools/make-model), adds
datasets of token ids in which every token is trained, submits the jobs of a setting, and measures from the step at which
all of them have been running for a while to the last one: wall time, evaluations and checkpoints apart. Memory is what
the device reports as used beyond what the worker used before it held a model; the estimate is the service's own, asked for
before the jobs are created.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))

from house import BINARIES, House, tell  # noqa: E402
from pace import Pace  # noqa: E402
from step_flops import flops_per_token  # noqa: E402

WARM_UP_STEPS = 5
POLL_SECONDS = 0.02

# tokens/s wanted on one H100, and how the tokens of a step come together.
SETTINGS = {
    "tinyllama-8x1024": dict(model="tinyllama-1.1b", adapters=8, sequences=1, length=1024, bar=105000),
    "tinyllama-one-8x512": dict(model="tinyllama-1.1b", adapters=1, sequences=8, length=512, bar=105000),
    "qwen-8x1024": dict(model="qwen2.5-3b", adapters=8, sequences=1, length=1024, bar=42000),
    "llama-4x1024": dict(model="llama-3.1-8b", adapters=4, sequences=1, length=1024, bar=20000),
    "llama-mixed-dropout": dict(model="llama-3.1-8b", adapters=4, sequences=4, length=0, dropout=0.1,
                                microbatch=10240, bar=18000),
}
# What the features of other families cost, where they are asked for by name: each pair in one run.
FEATURES = {
    "qwen3-4x1024": dict(model="qwen3-8b", adapters=4, sequences=1, length=1024),
    "qwen3-without-norms-4x1024": dict(model="qwen3-8b-without-norms", adapters=4, sequences=1, length=1024),
    "phi4-4x1024": dict(model="phi-4", adapters=4, sequences=1, length=1024),
    "gemma3-4x1024": dict(model="gemma-3-12b", adapters=4, sequences=1, length=1024),
    "mistral-1x8192": dict(model="mistral-7b", adapters=1, sequences=1, length=8192),
    "mistral-without-window-1x8192": dict(model="mistral-7b-without-window", adapters=1, sequences=1, length=8192),
    "qwen3-yarn-1x32768": dict(model="qwen3-8b-yarn", adapters=1, sequences=1, length=32768, bar=8000, checkpointing=True),
}
SEPARATE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


def used_bytes():
    """Of each GPU that processes here see, as the driver counts them."""
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True, check=True).stdout
    used = [int(line) << 20 for line in out.split()]
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [used[int(index)] for index in seen.split(",")] if seen else used


def lengths_of(setting, rng, count):
    """Of `count` sequences; mixed ones like those of summarization: most short, some long, log-normal around 300."""
    if setting["length"]:
        return [setting["length"]] * count
    return [max(32, min(2048, round(rng.lognormvariate(5.8, 0.8)))) for _ in range(count)]


def add_rows(house, name, setting, vocabulary, seed):
    rng = random.Random(seed)
    rows = []
    for length in lengths_of(setting, rng, 16 * setting["sequences"]):
        ids = [rng.randrange(vocabulary) for _ in range(length)]
        rows.append({"input_ids": ids, "labels": ids})
    house.add_dataset(name, rows)


def submit(house, setting, vocabulary, steps):
    jobs = []
    for i in range(setting["adapters"]):
        add_rows(house, f"rows-{i}", setting, vocabulary, i)
        jobs.append({
            "base_model": "model", "training_dataset": f"rows-{i}",
            "adapter": {"rank": setting["rank"], "alpha": 2 * setting["rank"], "dropout": setting["dropout"], "seed": i,
                        "target_modules": FUSED if setting["model"] == "phi-4" else SEPARATE},
            "training": {"max_steps": steps, "batch_size": setting["sequences"], "max_length": setting["length"] or 2048,
                         "learning_rate": 1e-4, "schedule": "CONSTANT", "seed": i, "checkpoint_every_steps": steps},
        })
    asked = house.folder / "estimate.json"
    asked.write_text(json.dumps(jobs[0]))
    estimate = house.object("estimate", "-f", asked)
    memory = estimate["peak_memory_bytes"]
    # Of a group with the first job alone, and what each further one brings: to a stage by its blocks.
    further = (len(jobs) - 1) * (memory["adapters"] + memory["optimizer"])
    expected = [memory["total"] + further]
    if stages := estimate.get("stages"):
        blocks = [stage["end_block"] - stage["first_block"] for stage in stages]
        expected = [stage["bytes"] + further * count / sum(blocks) for stage, count in zip(stages, blocks)]
    return expected, [house.submit(job) for job in jobs]


def tokens_done(house, names):
    """(tokens of all jobs so far, the step of the one that is least far)."""
    found = {job["name"]: job for job in house.objects("ls")}
    jobs = [found[name] for name in names]
    for job in jobs:
        if job["state"] in ("FAILED", "CANCELLED"):
            raise SystemExit(f"{job['name']} {job['state']}: {job['error']}")
    return sum(job["tokens"] for job in jobs), min(job["step"] for job in jobs), any(job["step"] >= job["total_steps"] > 0 for job in jobs)


def measure(house, names, steps):
    """Tokens a second between two moments at which all jobs are running; bytes at most; the group shortly before the end, and
    its trace."""
    pace = Pace(WARM_UP_STEPS)
    peak, group, trace = [], None, None
    while True:
        tokens, step, ended = tokens_done(house, names)
        now = time.perf_counter()
        if ended:
            break
        if pace.see(now, tokens, step):
            peak = used_bytes()
        if group is None and step >= steps - 2:
            group = house.object("cluster")["groups"][0]
            warm = int(group["microbatches"] * (1 - WARM_UP_STEPS / steps))  # of the steps that count for the speed
            trace = house.object("trace", names[0], "--microbatches", min(max(warm, 2), 1024), "-o", house.folder / "trace.json")
        time.sleep(POLL_SECONDS)
    speed = pace.tokens_per_second()
    if speed is None:
        raise SystemExit("too few steps to measure: raise --steps")
    return speed, peak, group, trace


@contextlib.contextmanager
def traced(folder, name):
    """Processes started inside write their kernels to files of that name, if there is a folder for them."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["KERNEL_TRACE"] = str(folder / name)
        os.environ["CUDA_INJECTION64_PATH"] = str(BINARIES / "tests/bench/libkernel_trace.so")
    yield
    os.environ.pop("CUDA_INJECTION64_PATH", None)


def print_trace(folder, name):
    """Of the process with the most kernels: the worker."""
    trace = max(folder.glob(f"{name}.*"), key=lambda file: file.stat().st_size)
    subprocess.run([sys.executable, pathlib.Path(__file__).with_name("kernel_table.py"), trace, "--steps-by", "AdamWKernel"],
                   check=True)


def run_lorad(setting, steps, stages=1, transport="auto"):
    """On `stages` GPUs, one stage of the model on each; with a microbatch of 0 tokens of as many as lorad finds right."""
    workers = "cuda:" + ",".join(map(str, range(stages)))
    tokens = ["--microbatch-tokens", setting["microbatch"]] if setting["microbatch"] else []
    house = House(None, "--workers", workers, *tokens, "--transport", transport)
    model = house.folder / "model"
    layers = ["--layers", str(setting["layers"])] if setting.get("layers") else []
    subprocess.run([ROOT / "tools/make-model", setting["model"], model, *layers], check=True, stdout=subprocess.DEVNULL)
    config = json.loads((model / "config.json").read_text())
    with house:
        house.wait_for_worker(stages)
        before = used_bytes()
        house.lora("model", "add", "model", "--path", model, *(["--stages", stages] if stages > 1 else []))
        estimated, names = submit(house, setting, config["vocab_size"], steps)
        speed, peak, group, trace = measure(house, names, steps)
        chrome_trace = (house.folder / "trace.json").read_text()
        devices = {worker["name"]: int(worker["device"].split(":")[1]) for worker in house.objects("worker", "ls")}
        jobs = house.wait(names)
        packed = sum(job["adapters_per_microbatch"] for job in jobs) / len(jobs)
        log = house.log()
    house.clear()
    seats = [devices[worker] for worker in group["workers"]]
    return {"tokens_per_second": speed, "peak_bytes": [peak[device] - before[device] for device in seats],
            "adapters_per_microbatch": packed, "estimated_bytes": estimated, "step_ms": 1000 * setting["tokens"] / speed,
            "tflops": speed * flops_per_token(config, setting["length"] or 400) / 1e12, "log": log, "group": group, "trace": trace,
            "chrome_trace": chrome_trace}


def run_peft(setting, steps):
    folder = pathlib.Path("/tmp") / f"shape-{setting['model']}"
    subprocess.run([ROOT / "tools/make-model", setting["model"], folder], check=True, stdout=subprocess.DEVNULL)
    request = {k: setting[k] for k in ("adapters", "sequences", "rank", "dropout", "checkpointing")}
    request |= {"model": str(folder), "length": setting["length"] or 400, "steps": steps, "tokens": setting["microbatch"]}
    done = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("peft_training.py"), json.dumps(request)],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"PEFT's run failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def complete(setting):
    setting = {"rank": 16, "dropout": 0.0, "checkpointing": False} | setting
    length = setting["length"] or 400
    setting["tokens"] = setting["adapters"] * setting["sequences"] * length
    return {"microbatch": setting["tokens"]} | setting


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", action="append", choices=sorted(SETTINGS | FEATURES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--microbatch-tokens", type=int, help="instead of the setting's own")
    parser.add_argument("--no-peft", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--trace", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        tell("\n".join(SETTINGS | FEATURES))
        return
    results = {}
    for name in options.setting or SETTINGS:
        setting = complete((SETTINGS | FEATURES)[name])
        if options.microbatch_tokens:
            setting["microbatch"] = options.microbatch_tokens
        with traced(options.trace, name):
            ours = run_lorad(setting, options.steps)
        peft = None if options.no_peft else run_peft(setting, 5)
        for large in ("log", "trace", "chrome_trace"):
            ours.pop(large)
        results[name] = {"lorad": ours, "peft": peft, "bar": setting.get("bar")}
        bar = f" (bar {setting['bar']:,})" if "bar" in setting else ""
        tell(f"{name}: {ours['tokens_per_second']:,.0f} tokens/s{bar}, {ours['tflops']:.0f} TFLOP/s, "
             f"{ours['adapters_per_microbatch']:.2f} adapters a microbatch, {ours['peak_bytes'][0] / 2**30:.3f} GiB used, {ours['estimated_bytes'][0] / 2**30:.3f} GiB estimated")
        if options.trace:
            print_trace(options.trace, name)
        if peft:
            memory = f"{peft['peak_bytes'] / 2**30:.2f} GiB" if peft["peak_bytes"] else "more memory than there is"
            tell(f"    PEFT: {peft['tokens_per_second']:,.0f} tokens/s, {memory} for as many tokens in flight; "
                 f"ratio {ours['tokens_per_second'] / peft['tokens_per_second']:.2f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
