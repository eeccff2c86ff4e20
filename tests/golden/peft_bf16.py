"""The reference runs of the small models again, by PEFT on a GPU with a bf16 base model (adapters float32, PEFT's default).

usage: peft_bf16.py GOLDEN_DIR -> one line of JSON: {"MODEL/RUN": {"loss", "losses", "norm", "matrix"}}, the
largest relative difference from the float32 reference, of losses also the root of the mean square: what bf16 itself costs.
"""

import json
import math
import pathlib
import sys

import torch
import transformers
from peft import PeftModel
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file
from transformers import get_scheduler

def runs_of(golden):
    """[(MODEL, RUN)] of all the small models."""
    return sorted((path.parent.parent.name, path.parent.name) for path in golden.glob("*/*/expected.json")
                  if (path.parent.parent / "model").exists())


def add_gradients(model, batch):
    """The batch's loss. Each row by itself: its neighbours' padding must not choose its rope."""
    trained = sum(sum(label != -100 for label in row["labels"][1:]) for row in batch)
    total = 0.0
    for row in batch:
        logits = model(input_ids=torch.tensor([row["input_ids"]], device="cuda"), use_cache=False).logits[0, :-1].float()
        labels = torch.tensor(row["labels"][1:], device="cuda")
        loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / trained
        loss.backward()
        total += loss.item()
    return total


def class_of(folder):
    return getattr(transformers, json.loads((folder / "model/config.json").read_text())["architectures"][0])


def train(folder, run):
    hyper = json.loads((folder / run / "expected.json").read_text())["hyper"]
    rows = [json.loads(line) for line in (folder / run / "train.jsonl").read_text().splitlines()]
    base = class_of(folder).from_pretrained(folder / "model", dtype=torch.bfloat16, attn_implementation="eager").cuda()
    model = PeftModel.from_pretrained(base, folder / run / "init", is_trainable=True)
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    options = {"lr": hyper["learning_rate"], "betas": (hyper["beta1"], hyper["beta2"]), "eps": hyper["eps"]}
    decay, ratio = hyper["weight_decay"], hyper.get("loraplus_lr_ratio", 1.0)
    if ratio == 1:
        optimizer = torch.optim.AdamW(parameters, weight_decay=decay, **options)
    else:
        options |= {"loraplus_lr_ratio": ratio, "loraplus_weight_decay": decay}
        optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, **options)
    size = hyper["batch_size"]
    batches = [rows[i:i + size] for i in range(0, len(rows), size)]
    name = {"constant": "constant_with_warmup"}.get(hyper["schedule"], hyper["schedule"])
    scheduler = get_scheduler(name, optimizer, hyper["warmup_steps"], len(batches))
    losses, norms = [], []
    for batch in batches:
        losses.append(add_gradients(model, batch))
        most = hyper["max_grad_norm"] or float("inf")
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, most).item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    matrices = {name.replace(".default.", "."): p.detach().float().cpu() for name, p in model.named_parameters() if p.requires_grad}
    return losses, norms, matrices


def differences(folder, run):
    losses, norms, matrices = train(folder, run)
    expected = json.loads((folder / run / "expected.json").read_text())
    want = load_file(folder / run / "final/adapter_model.safetensors")
    assert sorted(matrices) == sorted(want), (sorted(matrices)[:2], sorted(want)[:2])

    def most(got, reference):
        return max(abs(g - r) / max(abs(r), 1e-30) for g, r in zip(got, reference, strict=True))

    return {
        "loss": most(losses, expected["loss"]),
        "losses": math.sqrt(sum(((g - r) / r) ** 2 for g, r in zip(losses, expected["loss"], strict=True)) / len(losses)),
        "norm": most(norms, expected["grad_norm"]),
        "matrix": max(((matrices[n] - want[n]).norm() / want[n].norm()).item() for n in want),
    }


def main():
    golden = pathlib.Path(sys.argv[1])
    print(json.dumps({f"{model}/{run}": differences(golden / model, run) for model, run in runs_of(golden)}))


main()
