"""PEFT on torch on the rows that loss_curve.py chose: their losses, step by step, as one line of JSON.

SETTING (JSON): {"model": DIR, "rows": FILE of {"input_ids", "labels"} a line, "steps", "batch_size", "learning_rate",
"rank", "device": "cuda" or "cpu", "dtype": of the base model, "init": DIR of the adapter before the first step: read, or written where it is missing}.
Rows in their order, from the first again behind the last; loss over the trained tokens of a batch; clipping at 1, AdamW
without decay, constant learning rate.
"""

import json
import pathlib
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def padded(rows, device):
    """The rows of a batch to the right of which nothing counts."""
    longest = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": 0, "labels": -100}
    batch = {key: torch.tensor([row[key] + [value] * (longest - len(row[key])) for row in rows], device=device)
             for key, value in fill.items()}
    batch["attention_mask"] = torch.tensor(
        [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows], device=device)
    return batch


def main():
    setting = json.loads(sys.argv[1])
    device = setting["device"]
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(setting["model"], dtype=getattr(torch, setting["dtype"])).to(device)
    base.config.use_cache = False
    rank = setting["rank"]
    if pathlib.Path(setting["init"]).exists():
        model = PeftModel.from_pretrained(base, setting["init"], is_trainable=True)
    else:
        model = get_peft_model(base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS, task_type="CAUSAL_LM"))
        model.save_pretrained(setting["init"])
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=setting["learning_rate"], weight_decay=0.0)
    rows = [json.loads(line) for line in pathlib.Path(setting["rows"]).read_text().splitlines()]
    losses = []
    for step in range(setting["steps"]):
        first = step * setting["batch_size"]
        batch = padded([rows[i % len(rows)] for i in range(first, first + setting["batch_size"])], device)
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    print(json.dumps({"losses": losses, "torch": torch.__version__}))


main()
