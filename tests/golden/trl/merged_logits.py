"""The logits of a merged directory beside those of PEFT's merge_and_unload, both in float32 on the CPU.

usage: merged_logits.py BASE_DIR ADAPTER_DIR MERGED_DIR -> a line of JSON, the largest of all logits: {"difference": from PEFT's,
"moved": by the adapter, "largest": a logit itself}
"""

import json
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(ids).logits


def main():
    base_dir, adapter_dir, merged_dir = sys.argv[1:]

    def load(path):
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")

    base = load(base_dir)
    ids = torch.randint(3, base.config.vocab_size, (4, 64), generator=torch.Generator().manual_seed(1))
    before = logits(base, ids)
    expected = logits(PeftModel.from_pretrained(base, adapter_dir).merge_and_unload(), ids)
    ours = logits(load(merged_dir), ids)
    print(json.dumps({"difference": (ours - expected).abs().max().item(), "moved": (expected - before).abs().max().item(), "largest": expected.abs().max().item()}))


if __name__ == "__main__":
    main()
