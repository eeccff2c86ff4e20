"""A job that does not fit as it is trains with more computed again: the estimate says so, and the adapter has the same bits.

usage: recomputation_test.py [DEVICE]     DEVICE: cpu (default) or cuda:I
"""

import json
import random
import sys

from formats import token_rows, write_model
from house import House, main, tell

DEVICE = sys.argv.pop(1) if len(sys.argv) > 1 else "cpu"
ON_CPU = DEVICE == "cpu"
MICROBATCH_TOKENS = 2048
# What is computed again where memory gets shorter, and how `lora estimate` puts it. A CPU always computes norms and
# products again.
LEVELS = [("RECOMPUTE_NOTHING", None), ("RECOMPUTE_PRODUCTS", "norms and products"), ("RECOMPUTE_BLOCKS", "whole blocks")]


def train(*options):
    """A job in a daemon of its own: its estimate, as text as well, its group and its adapter's bytes."""
    with House(None, "--workers", "cpu:1" if ON_CPU else DEVICE, "--microbatch-tokens", MICROBATCH_TOKENS, *options) as house:
        house.lora("model", "add", "deep", "--path", write_model(house.folder / "model", layers=8))
        house.add_dataset("rows", token_rows(random.Random(1), 20))
        house.wait_for_worker()
        job = {"base_model": "deep", "training_dataset": "rows",
               "adapter": {"rank": 8, "dropout": 0.1, "target_modules": ["q_proj", "v_proj", "down_proj"]},
               "training": {"max_steps": 8, "batch_size": 3, "max_length": 900, "learning_rate": 1e-3}}
        path = house.folder / "job.json"
        path.write_text(json.dumps(job))
        estimate = house.object("estimate", "-f", path)
        text = house.lora("estimate", "-f", path).out
        name = house.submit(job)
        house.wait([name], until=lambda job: job["state"] == "RUNNING" or job["step"] > 0)
        groups = house.object("cluster")["groups"]
        house.wait([name])
        adapter = (house.adapter(name) / "adapter_model.safetensors").read_bytes()
    house.clear()
    return estimate, text, groups, adapter


def test_more_is_computed_again_where_memory_is_short():
    want, total, options = None, 0, []
    for level, words in LEVELS[1:] if ON_CPU else LEVELS:
        estimate, text, groups, adapter = train(*options)
        assert estimate["fits"] and estimate["recomputation"] == level, estimate
        assert words is None or words in text, text
        assert groups[0]["recomputation"] == level, groups
        assert total == 0 or groups[0]["reserved_bytes"] < total
        total = estimate["peak_memory_bytes"]["total"]
        tell(f"    {level}: {total:,} bytes")
        want = want or adapter
        assert adapter == want, "the adapter's bytes differ"
        options = ["--worker-memory", int(1.02 * total) - 2]  # what fits has 2 % to spare


if __name__ == "__main__":
    main([test_more_is_computed_again_where_memory_is_short])
