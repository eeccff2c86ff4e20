"""A job that does not fit as it is trains with blocks computed again: the estimate says so, and the adapter has the same bits."""

import json
import random

from formats import token_rows, write_model
from house import House, main, tell

MICROBATCH_TOKENS = 2048


def train(*options):
    """A job in a daemon of its own: its estimate, its group and its adapter's bytes."""
    with House(None, "--workers", "cpu:1", "--microbatch-tokens", MICROBATCH_TOKENS, *options) as house:
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


def test_blocks_are_computed_again_where_memory_is_short():
    estimate, text, groups, adapter = train()
    assert estimate["fits"] and estimate["recomputation"] == "RECOMPUTE_PRODUCTS", estimate
    assert "norms and products" in text, text
    assert groups[0]["recomputation"] == "RECOMPUTE_PRODUCTS", groups
    total = estimate["peak_memory_bytes"]["total"]
    short = int(1.02 * total) - 2  # what fits has 2 % to spare
    less, text, groups, again = train("--worker-memory", short)
    assert less["fits"] and less["recomputation"] == "RECOMPUTE_BLOCKS", less
    assert "whole blocks" in text, text
    assert groups[0]["recomputation"] == "RECOMPUTE_BLOCKS", groups
    assert groups[0]["reserved_bytes"] < total
    tell(f"    {total:,} bytes, with blocks computed again {less['peak_memory_bytes']['total']:,}")
    assert again == adapter, "the adapter's bytes differ"


if __name__ == "__main__":
    main([test_blocks_are_computed_again_where_memory_is_short])
