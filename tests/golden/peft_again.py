"""Trains the runs again whose makers are not in this repository, by transformers and PEFT, from their model, first adapter and
rows, and says how far losses, rates, norms and last adapter are from the committed ones. Ends with 1 where one is too far.

usage: peft_again.py GOLDEN_DIR SMOLLM2_DIR
"""

import json
import pathlib
import sys

import peft
import safetensors.torch
import torch
import transformers
from peft_runs import train

RUNS = ["llama_gqa_untied/r8_all", "llama_gqa_untied/r4_qv_rslora", "qwen2_bias_tied/r16_attn", "qwen2_bias_tied/r8_mlp"]
SMOLLM2 = "smollm2_gsm8k_r4_qv"
ADAMW = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}  # torch's, where a run names none
# Relative: of losses, norms and the last matrices (Frobenius). Batches were padded there, and are not here. Of SmolLM2's 30
# layers float32 leaves more: its first loss in float64 is 1e-5 from either.
BARS = (1e-6, 1e-6, 2e-6)
SMOLLM2_BARS = (2e-5, 1e-4, 1e-3)


def tokenized(rows, tokenizer, length):
    """Conversations as ids, the last turn alone trained on."""
    for row in rows:
        prompt = tokenizer.apply_chat_template(row["messages"][:-1], add_generation_prompt=True, return_dict=False)
        ids = tokenizer.apply_chat_template(row["messages"], return_dict=False)[:length]
        yield {"input_ids": ids, "labels": [-100] * len(prompt) + ids[len(prompt):]}


def rows_of(run, model, hyper, expected):
    rows = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]
    if "input_ids" in rows[0]:
        return rows
    rows = list(tokenized(rows, transformers.AutoTokenizer.from_pretrained(model), hyper["max_length"]))
    for row, given in zip(rows, expected["tokenization"]):
        assert (row["input_ids"], row["labels"]) == (given["ids"], given["labels"]), "tokens are not those of the run"
    return rows


def distance(values, expected):
    return max(abs(x - y) / max(abs(y), 1e-30) for x, y in zip(values, expected, strict=True))


def again(run, base, bars):
    expected = json.loads((run / "expected.json").read_text())
    hyper = ADAMW | expected["hyper"]
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(model, run / "init", is_trainable=True)
    model.train()
    found = train(model, rows_of(run, base, hyper, expected), hyper)
    last = safetensors.torch.load_file(run / "final/adapter_model.safetensors")
    ours = peft.get_peft_model_state_dict(model)
    assert ours.keys() == last.keys(), "other matrices than those of the run"
    matrices = max(((ours[key] - last[key]).norm() / last[key].norm()).item() for key in last)
    losses, norms = (distance(found[key], expected[key]) for key in ("loss", "grad_norm"))
    within = all(far <= bar for far, bar in zip((losses, norms, matrices), bars))
    same = found["lr"] == expected["lr"]
    print(f"{run.name}: losses {losses:.1e}, norms {norms:.1e}, last matrices {matrices:.1e} apart, rates "
          f"{'the same' if same else 'others'}{'' if within and same else ': TOO FAR'}")
    return same and within


def main():
    golden, smollm2 = map(pathlib.Path, sys.argv[1:3])
    held = [again(golden / run, (golden / run).parent / "model", BARS) for run in RUNS]
    held.append(again(golden / SMOLLM2, smollm2, SMOLLM2_BARS))
    sys.exit(0 if all(held) else 1)


main()
