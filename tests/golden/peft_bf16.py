"""The reference runs of the small models again, by PEFT on a GPU with a bf16 base model (adapters float32, PEFT's default).

usage: peft_bf16.py GOLDEN_DIR -> one line of JSON: {"MODEL/RUN": {"loss", "norm", "matrix"}}, the largest relative
difference from the float32 reference: what bf16 itself costs.
"""

import json
import pathlib
import sys

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, get_scheduler

RUNS = {"llama_gqa_untied": ["r8_all", "r4_qv_rslora"], "qwen2_bias_tied": ["r16_attn", "r8_mlp"]}


def batch_of(rows):
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(values, filler):
        return torch.tensor([v + [filler] * (longest - len(v)) for v in values], device="cuda")

    return {
        "input_ids": padded([row["input_ids"] for row in rows], 0),
        "labels": padded([row["labels"] for row in rows], -100),
        "attention_mask": padded([[1] * len(row["input_ids"]) for row in rows], 0),
    }


def train(folder, run):
    hyper = json.loads((folder / run / "expected.json").read_text())["hyper"]
    rows = [json.loads(line) for line in (folder / run / "train.jsonl").read_text().splitlines()]
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.bfloat16, attn_implementation="sdpa").cuda()
    model = PeftModel.from_pretrained(base, folder / run / "init", is_trainable=True)
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=hyper["learning_rate"], betas=(hyper["beta1"], hyper["beta2"]),
                                  eps=hyper["eps"], weight_decay=hyper["weight_decay"])
    size = hyper["batch_size"]
    batches = [rows[i:i + size] for i in range(0, len(rows), size)]
    name = {"constant": "constant_with_warmup"}.get(hyper["schedule"], hyper["schedule"])
    scheduler = get_scheduler(name, optimizer, hyper["warmup_steps"], len(batches))
    losses, norms = [], []
    for batch in batches:
        loss = model(**batch_of(batch)).loss
        loss.backward()
        most = hyper["max_grad_norm"] or float("inf")
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, most).item())
        losses.append(loss.item())
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
        "norm": most(norms, expected["grad_norm"]),
        "matrix": max(((matrices[n] - want[n]).norm() / want[n].norm()).item() for n in want),
    }


def main():
    golden = pathlib.Path(sys.argv[1])
    print(json.dumps({f"{model}/{run}": differences(golden / model, run) for model, runs in RUNS.items() for run in runs}))


main()
