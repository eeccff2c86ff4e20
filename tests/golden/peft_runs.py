"""Makes the reference runs of the families in families.py: MODEL/model, and MODEL/RUN with init, train.jsonl,
expected.json and final (README.md), by transformers and PEFT in float32 on a CPU, eager attention. tools/references runs
it in an environment with fixed versions.

usage: peft_runs.py GOLDEN_DIR [MODEL | MODEL/RUN ...]     with a run its model stays as it is
       peft_runs.py --drawn N GOLDEN_DIR DIR     each model of GOLDEN_DIR N times more, of other weights and rows:
                                                 DIR/MODEL_drawnI/r4_all
"""

import json
import math
import pathlib
import random
import shutil
import sys

import peft
import torch
import transformers
from families import FAMILIES
from peft.optimizers import create_loraplus_optimizer

HYPER = {"learning_rate": 2e-3, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "max_grad_norm": 1.0,
         "warmup_steps": 2, "schedule": "cosine", "steps": 12, "batch_size": 3, "epochs": 1, "shuffle": False}
# Of a row; on both sides of windows of 16 and of borders at 32.
LENGTHS = [5, 16, 17, 31, 32, 33, 34, 48, 63, 80]
TEXT = r"model\.(language_model\.)?layers\."
# What each run trains: a regular expression over module names.
RUNS = {"r4_all": (4, 8, TEXT + r"\d+\.(self_attn|mlp)\.\w+_proj"),
        "r4_loraplus": (4, 8, TEXT + r"\d+\.self_attn\.\w+_proj"),
        "r3_some": (3, 12, TEXT + r"\d+\.(self_attn\.(q|v|qkv)|mlp\.(gate|up|gate_up))_proj")}
# What others train, in PEFT's words; their configs are kept as PEFT writes them.
PATTERNS = {
    "patterns": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "self_attn.o_proj", "gate_proj", "down_proj"],
                 "layers_to_transform": [0, 2], "exclude_modules": ["layers.2.self_attn.o_proj"],
                 "rank_pattern": {"v_proj": 2, r"layers\.[02]\.mlp\.down_proj": 7, "layers.2.self_attn.q_proj": 16},
                 "alpha_pattern": {"q_proj": 32, "model.layers.0.mlp.gate_proj": 24}},
    "all_linear": {"r": 3, "lora_alpha": 6, "target_modules": "all-linear", "exclude_modules": r".*layers\.1\..*(up|o)_proj",
                   "use_rslora": True, "rank_pattern": {r"mlp\.\w+": 5}},
    "regex": {"r": 5, "lora_alpha": 4, "target_modules": r"model\.layers\.[12]\.(self_attn\.[kv]|mlp\.(gate|up))_proj",
              "alpha_pattern": {r"layers\.1\.\w+\.(v|gate)_proj": 20}},
}
RUNS_OF = {"qwen3": ["r4_all", "r3_some", "r4_loraplus", "patterns", "all_linear", "regex"], "phi3": ["r4_all", "all_linear"]}
RATIOS = {"r4_loraplus": 16.0}  # LoRA+


def save_model(folder, config, model_class, seed):
    """Random weights of a size at which every feature counts, exact in bfloat16; norms near what they multiply by 1."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = model_class(config)
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() == 1 and "norm" in parameter_name:
            parameter.data = parameter.data + 0.3 * torch.randn_like(parameter)
        else:
            spread = 1.2 / math.sqrt(parameter.shape[-1])
            parameter.data = spread * torch.randn_like(parameter)
    shutil.rmtree(folder / "model", ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    (folder / "model/generation_config.json").unlink(missing_ok=True)


def make_rows(seed, vocabulary):
    draw = random.Random(seed)
    rows = []
    for i in range(HYPER["steps"] * HYPER["batch_size"]):
        length = LENGTHS[i % len(LENGTHS)]
        ids = [draw.randrange(3, vocabulary - 1) for _ in range(length)]
        prompt = draw.randrange(1, max(2, length // 2))
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return rows


def rate_of(step, hyper):
    """transformers' schedules with warm-up."""
    warmup, steps, rate = hyper["warmup_steps"], hyper["steps"], hyper["learning_rate"]
    if step < warmup:
        return rate * step / warmup
    done = (step - warmup) / (steps - warmup)
    return rate * {"constant": 1.0, "linear": 1.0 - done, "cosine": max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))}[hyper["schedule"].lower()]


def make_optimizer(model, hyper, ratio):
    """PEFT's for LoRA+ where a ratio is given, which has groups of their own for A and B; rates are relative."""
    options = {"lr": 1.0, "betas": (hyper["beta1"], hyper["beta2"]), "eps": hyper["eps"], "weight_decay": hyper["weight_decay"]}
    if ratio == 1:
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **options)
    decay = options.pop("weight_decay")
    return create_loraplus_optimizer(model, torch.optim.AdamW, loraplus_lr_ratio=ratio, loraplus_weight_decay=decay, **options)


def train(model, rows, hyper, ratio=1.0):
    """Losses, norms and rates of every step. Each row by itself: its neighbours' padding must not choose its rope."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(model, hyper, ratio)
    relative = [group["lr"] for group in optimizer.param_groups]
    losses, norms, rates = [], [], []
    size = hyper["batch_size"]
    for step in range(hyper["steps"]):
        batch = rows[step * size:(step + 1) * size]
        trained = sum(sum(label != -100 for label in row["labels"][1:]) for row in batch)
        total = 0.0
        for row in batch:
            logits = model(input_ids=torch.tensor([row["input_ids"]]), use_cache=False).logits[0, :-1].float()
            labels = torch.tensor(row["labels"][1:])
            loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / trained
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, hyper["max_grad_norm"] or math.inf).item())
        rates.append(rate_of(step, hyper))
        for group, rate in zip(optimizer.param_groups, relative):
            group["lr"] = rates[-1] * rate
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": losses, "grad_norm": norms, "lr": rates}


def config_of(run):
    if run in PATTERNS:
        return peft.LoraConfig(task_type="CAUSAL_LM", **PATTERNS[run])
    rank, alpha, targets = RUNS[run]
    return peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")


def make_run(folder, run, seed):
    config = transformers.AutoConfig.from_pretrained(folder / "model")
    model_class = getattr(transformers, config.architectures[0])
    base = model_class.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(seed)
    model = peft.get_peft_model(base, config_of(run))
    for parameter_name, parameter in model.named_parameters():
        if "lora_B" in parameter_name:
            parameter.data = 0.05 * torch.randn_like(parameter)
    # A name alone would also match a tower's projections, which are not trained.
    if run in RUNS and config.get_text_config() is config:
        names = {n.split(".")[-1] for n, module in model.named_modules() if hasattr(module, "lora_A")}
        model.peft_config["default"].target_modules = names
    to = folder / run
    shutil.rmtree(to, ignore_errors=True)
    model.save_pretrained(to / "init")
    rows = make_rows(seed, config.get_text_config().vocab_size)
    (to / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model.train()
    ratio = RATIOS.get(run, 1.0)
    expected = {"hyper": HYPER | {"loraplus_lr_ratio": ratio}} | train(model, rows, HYPER, ratio)
    if run in PATTERNS:
        expected["peft"] = PATTERNS[run]
    (to / "expected.json").write_text(json.dumps(expected, indent=1))
    model.save_pretrained(to / "final")
    for readme in to.glob("*/README.md"):
        readme.unlink()
    print(f"{folder.name}/{run}: losses {expected['loss'][0]:.4f} to {expected['loss'][-1]:.4f}")


def draw(golden, folder, count):
    for seed, path in enumerate(sorted(golden.glob("*/model"))):
        config = transformers.AutoConfig.from_pretrained(path)
        for i in range(1, count + 1):
            to = folder / f"{path.parent.name}_drawn{i}"
            save_model(to, config, getattr(transformers, config.architectures[0]), 1000 * i + seed)
            make_run(to, "r4_all", 1000 * i + 500 + seed)


def main():
    if sys.argv[1] == "--drawn":
        return draw(pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4]), int(sys.argv[2]))
    golden = pathlib.Path(sys.argv[1])
    for seed, name in enumerate(FAMILIES):
        asked = sys.argv[2:]
        folder = golden / name
        if not asked or name in asked:
            config_class, model_class, fields = FAMILIES[name]
            save_model(folder, getattr(transformers, config_class)(**fields), getattr(transformers, model_class), seed + 1)
        for run in RUNS_OF.get(name, ["r4_all"]):
            if not asked or name in asked or f"{name}/{run}" in asked:
                make_run(folder, run, 100 + seed)


if __name__ == "__main__":
    main()
