"""The reference runs of tests/golden as jobs of the service, and how far what came out lies from what PEFT got."""

import json
import math

from formats import frobenius_difference, read_safetensors
from house import GOLDEN, House, tell

RUNS = {"llama-gqa-untied": ["r8_all", "r4_qv_rslora"], "qwen2-bias-tied": ["r16_attn", "r8_mlp"],
        "qwen3": ["r4_all", "r3_some", "r4_loraplus", "patterns", "all_linear", "regex"], "qwen3-yarn": ["r4_all"], "mistral-window": ["r4_all"], "gemma": ["r4_all"],
        "gemma2": ["r4_all"], "gemma3": ["r4_all"], "gemma3-tower": ["r4_all"], "mistral3-tower": ["r4_all"], "phi3": ["r4_all", "all_linear"], "smollm3": ["r4_all"], "olmo2": ["r4_all"],
        "olmo3": ["r4_all"], "granite": ["r4_all"]}
FOLDERS = {}  # of models that are not in GOLDEN


def folder_of(model, run=""):
    return FOLDERS.get(model, GOLDEN / model.replace("-", "_")) / run


def add_drawn(folder):
    """The runs that peft_runs.py --drawn has made there become runs like the others."""
    for path in sorted(folder.iterdir()):
        model = path.name.replace("_", "-")
        FOLDERS[model] = path
        RUNS[model] = ["r4_all"]


def job_of(model, run):
    expected = json.loads((folder_of(model, run) / "expected.json").read_text())
    hyper = expected["hyper"]
    config = json.loads((folder_of(model, run) / "init/adapter_config.json").read_text())
    name = name_of(model, run)
    targets = words_of(expected["peft"]) if "peft" in expected else {"target_modules": targets_of(model, run)}
    return {
        "display_name": name, "base_model": model, "training_dataset": name,
        "adapter": {"rank": config["r"], "alpha": config["lora_alpha"], "dropout": config["lora_dropout"],
                    "use_rslora": config["use_rslora"], "init_from": name, **targets},
        "training": {"epochs": hyper["epochs"], "batch_size": hyper["batch_size"], "max_length": 256,
                     "learning_rate": hyper["learning_rate"], "schedule": hyper["schedule"].upper(),
                     "warmup_steps": hyper["warmup_steps"], "weight_decay": hyper["weight_decay"], "beta1": hyper["beta1"],
                     "beta2": hyper["beta2"], "eps": hyper["eps"], "max_grad_norm": hyper["max_grad_norm"],
                     "loraplus_lr_ratio": hyper.get("loraplus_lr_ratio", 1.0),
                     "shuffle": hyper["shuffle"]},
    }


def words_of(peft):
    """What says which modules, in PEFT's words, as the service has it."""
    said = {field: peft[field] for field in ("layers_to_transform", "rank_pattern", "alpha_pattern") if field in peft}
    targets, excluded = peft["target_modules"], peft.get("exclude_modules", [])
    said |= {"target_modules": ["all-linear"]} if targets == "all-linear" else \
        {"target_regex": targets} if isinstance(targets, str) else {"target_modules": targets}
    return said | ({"exclude_regex": excluded} if isinstance(excluded, str) else {"exclude_modules": excluded})


def targets_of(model, run):
    """The last names of the modules that have matrices."""
    return sorted({name.split(".")[-3] for name in read_safetensors(folder_of(model, run) / "init/adapter_model.safetensors")})


def name_of(model, run):
    return f"{model}-{run}".replace("_", "-")


def prepare(house):
    for model, runs in RUNS.items():
        house.lora("model", "add", model, "--path", folder_of(model) / "model")
        for run in runs:
            house.lora("dataset", "add", name_of(model, run), folder_of(model, run) / "train.jsonl")
            house.lora("adapter", "import", name_of(model, run), "--path", folder_of(model, run) / "init")


def relative(a, b):
    return abs(a - b) / max(abs(b), 1e-30)


def differences(house, job, model, run):
    """{"loss", "losses", "norm", "matrix"}: the largest relative difference of a job that has ended from its reference run,
    of losses also the root of the mean square."""
    expected = json.loads((folder_of(model, run) / "expected.json").read_text())
    steps = house.objects("metrics", job)
    assert [s["step"] for s in steps] == list(range(1, len(expected["loss"]) + 1)), steps
    assert all(relative(s["learning_rate"], e) < 1e-12 or s["learning_rate"] == e for s, e in zip(steps, expected["lr"]))
    got = read_safetensors(house.adapter(job) / "adapter_model.safetensors")
    want = read_safetensors(folder_of(model, run) / "final/adapter_model.safetensors")
    assert sorted(got) == sorted(want)
    assert all(got[name][0] == want[name][0] for name in want)
    losses = [relative(s["loss"], e) for s, e in zip(steps, expected["loss"])]
    found = {
        "loss": max(losses),
        "losses": math.sqrt(sum(loss ** 2 for loss in losses) / len(losses)),
        "norm": max(relative(s["grad_norm"], e) for s, e in zip(steps, expected["grad_norm"])),
        "matrix": max(frobenius_difference(got[name][1], want[name][1]) for name in want),
    }
    tell(f"    {name_of(model, run)}: " + ", ".join(f"{what} {value:.1e}" for what, value in found.items()))
    return found


def run_on(device, precision):
    """{(model, run): differences} of all reference runs, those of a model packed together."""
    with House(None, "--workers", "none") as house:
        prepare(house)
        jobs = {house.submit(job_of(model, run)): (model, run) for model, runs in RUNS.items() for run in runs}
        house.start_worker("--device", device, "--precision", precision)
        done = house.wait(list(jobs))
        packed = [job for job in done if len(RUNS[jobs[job["name"]][0]]) > 1]
        assert all(job["adapters_per_microbatch"] > 1.5 for job in packed), "the jobs of one model were not packed"
        found = {jobs[job["name"]]: differences(house, job["name"], *jobs[job["name"]]) for job in done}
    house.clear()
    return found
