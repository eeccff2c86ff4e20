"""The logits of a merged directory beside those of PEFT's merge_and_unload, both in float32 on the CPU.

usage: merged_logits.py {BASE_DIR ADAPTER_DIR MERGED_DIR}... -> for each three a line of JSON, the largest of all logits:
{"difference": from PEFT's, "moved": by the adapter, "largest": a logit itself}
"""

import json
import sys

import torch
import transformers
from peft import PeftModel
from transformers import AutoConfig


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(ids).logits


def load(path):
    (architecture,) = AutoConfig.from_pretrained(path).architectures  # of a model with a tower no class of AutoModelForCausalLM
    return getattr(transformers, architecture).from_pretrained(path, dtype=torch.float32, attn_implementation="eager")


def compare(base_dir, adapter_dir, merged_dir):
    base = load(base_dir)
    # Not the last id, which stands for a part of an image where there is a tower.
    vocabulary = base.config.get_text_config().vocab_size
    ids = torch.randint(3, vocabulary - 1, (4, 64), generator=torch.Generator().manual_seed(1))
    before = logits(base, ids)
    expected = logits(PeftModel.from_pretrained(base, adapter_dir).merge_and_unload(), ids)
    ours = logits(load(merged_dir), ids)
    return {"difference": (ours - expected).abs().max().item(), "moved": (expected - before).abs().max().item(),
            "largest": expected.abs().max().item()}


def main():
    paths = iter(sys.argv[1:])
    for base_dir, adapter_dir, merged_dir in zip(paths, paths, paths, strict=True):
        print(json.dumps(compare(base_dir, adapter_dir, merged_dir)))


if __name__ == "__main__":
    main()
