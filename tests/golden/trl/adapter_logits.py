"""How far the logits of a model with one adapter directory lie from those with another, both as PEFT reads them; and
whether PEFT found every matrix of its modules in the files. JSON on stdout.

usage: adapter_logits.py MODEL_DIRECTORY ADAPTER_DIRECTORY OTHER_DIRECTORY
"""

import json
import sys
import warnings

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


def logits_of(model_directory, adapter, ids):
    base = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32, attn_implementation="eager")
    without = base(input_ids=ids).logits
    model = PeftModel.from_pretrained(base, adapter).eval()
    loras = {name: [module.r["default"], module.scaling["default"]] for name, module in model.named_modules() if hasattr(module, "lora_A")}
    return model(input_ids=ids).logits, without, loras


def main():
    ids = torch.randint(3, 180, (1, 48), generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        ours, without, loras = logits_of(sys.argv[1], sys.argv[2], ids)
        theirs, _, others = logits_of(sys.argv[1], sys.argv[3], ids)
    print(json.dumps({"difference": (ours - theirs).abs().max().item(), "moved": (ours - without).abs().max().item(),
                      "modules": len(loras), "same_modules": loras == others,
                      "missing": [str(w.message) for w in told if "missing" in str(w.message).lower()]}))


main()
