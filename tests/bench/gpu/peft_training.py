"""PEFT on torch on a GPU, for training.py beside it: one setting from the command line -> one line of JSON.

SETTING (JSON): {"model": DIR with config.json, "adapters": N, "sequences": per adapter and step, "length": tokens, "rank",
"dropout", "checkpointing": of gradients, "steps", "tokens": of a microbatch}. bf16 weights from torch's own initialization,
float32 adapters (PEFT's default), all seven targets, every token trained, clipping, fused AdamW, torch's scaled-dot-product
attention. Several adapters train one after the other on one copy of the base model, as PEFT has it. Memory is measured on
steps of one adapter with as many tokens in flight as lorad has; null where the device is too small for them.
"""

import json
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

SEPARATE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


def make_model(setting):
    config = AutoConfig.from_pretrained(setting["model"])
    torch.manual_seed(1)
    with torch.device("cuda"):
        base = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    base.config.use_cache = False
    if setting["checkpointing"]:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    rank = setting["rank"]
    targets = FUSED if config.model_type == "phi3" else SEPARATE
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=setting["dropout"], target_modules=targets, task_type="CAUSAL_LM")
    model = get_peft_model(base, lora, adapter_name="a0")
    for i in range(1, setting["adapters"]):
        model.add_adapter(f"a{i}", lora)
    model.train()
    return model


def main():
    setting = json.loads(sys.argv[1])
    model = make_model(setting)
    adapters = [f"a{i}" for i in range(setting["adapters"])]
    parameters = {a: [p for name, p in model.named_parameters() if f".{a}." in name] for a in adapters}
    for of_adapter in parameters.values():
        for p in of_adapter:
            p.requires_grad_(True)
    optimizers = {a: torch.optim.AdamW(parameters[a], lr=1e-4, weight_decay=0.0, fused=True) for a in adapters}
    shape = (setting["sequences"], setting["length"])
    ids = {a: torch.randint(0, model.config.vocab_size, shape, device="cuda") for a in adapters}

    def train(a, batch):
        model.set_adapter(a)
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters[a], 1.0)
        optimizers[a].step()
        optimizers[a].zero_grad(set_to_none=True)

    def step():
        for a in adapters:
            train(a, ids[a])
        torch.cuda.synchronize()

    for _ in range(2):
        step()
    times = []
    for _ in range(setting["steps"]):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    tokens = setting["adapters"] * setting["sequences"] * setting["length"]
    in_flight = (max(setting["tokens"] // setting["length"], 1), setting["length"])
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        for _ in range(2):
            train(adapters[0], torch.randint(0, model.config.vocab_size, in_flight, device="cuda"))
        peak = torch.cuda.max_memory_reserved()
    except torch.OutOfMemoryError:
        peak = None
    print(json.dumps({
        "tokens_per_second": tokens / sorted(times)[len(times) // 2],
        "peak_bytes": peak,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
    }))


main()
