"""PEFT on torch, for cpu_training: MODEL_DIR THREADS STEPS TOKENS -> one line of JSON.

One adapter trains 4 x TOKENS tokens a step; four adapters train 1 x TOKENS each, one after the
other, on one copy of the base model. float32, rank 8, all seven targets, every token trained,
clipping, AdamW. The faster of torch's attentions is taken.
"""

import json
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_model(path, attention, adapters):
    config = AutoConfig.from_pretrained(path)
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = get_peft_model(base, lora, adapter_name="a0")
    for i in range(1, adapters):
        model.add_adapter(f"a{i}", lora)
    model.train()
    return model


def parameters_of(model, adapter):
    return [p for name, p in model.named_parameters() if f".{adapter}." in name]


def run(path, attention, adapters, steps, tokens):
    model = make_model(path, attention, adapters)
    sequences = 4 // adapters
    optimizers = []
    for i in range(adapters):
        for p in parameters_of(model, f"a{i}"):
            p.requires_grad_(True)
        optimizers.append(torch.optim.AdamW(parameters_of(model, f"a{i}"), lr=1e-4, weight_decay=0.0))
    vocabulary = model.config.vocab_size
    ids = [torch.randint(0, vocabulary, (sequences, tokens)) for _ in range(adapters)]
    losses = []

    def step():
        for i in range(adapters):
            model.set_adapter(f"a{i}")
            loss = model(input_ids=ids[i], labels=ids[i]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters_of(model, f"a{i}"), 1.0)
            optimizers[i].step()
            optimizers[i].zero_grad()
            losses.append(loss.item())

    step()  # warm-up
    first = sum(losses) / len(losses)
    fastest = float("inf")
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        fastest = min(fastest, time.perf_counter() - begin)
    return {"tokens_per_second": 4 * tokens / fastest, "loss": first}


def main():
    path, threads, steps, tokens = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(threads)
    result = {}
    for adapters in (1, 4):
        runs = [run(path, attention, adapters, steps, tokens) for attention in ("eager", "sdpa")]
        result[str(adapters)] = max(runs, key=lambda r: r["tokens_per_second"])
    result["versions"] = {"torch": torch.__version__}
    print(json.dumps(result))


main()
