"""Planning is hidden behind training: the packing program runs while the worker has a window to run, and the cluster says so."""

import random

from formats import token_rows, write_model
from house import LIVE_STATES, House, main, tell

STEPS = 40
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def job(i):
    return {"base_model": "small", "training_dataset": "rows", "adapter": {"rank": 8, "target_modules": TARGETS},
            "training": {"max_steps": STEPS, "batch_size": 8, "max_length": 900, "learning_rate": 1e-3, "seed": i, "checkpoint_every_steps": 0}}


def test_hidden():
    with House(None, "--workers", "none", "--microbatch-tokens", 1024) as house:
        generator = random.Random(5)
        house.lora("model", "add", "small", "--path", write_model(house.folder / "model", seed=5))
        house.add_dataset("rows", token_rows(generator, 200))
        names = [house.submit(job(i)) for i in range(4)]
        house.start_worker("--threads", 2)
        group, live = None, True
        while live:
            live = any(house.object("show", name)["state"] in LIVE_STATES for name in names)
            groups = house.object("cluster")["groups"]
            group = groups[0] if groups else group  # the last that was seen of it
        house.wait(names)
    packings = {path: int(count) for path, count in group["packings"].items()}
    hidden = group["planning_hidden_seconds"] / group["planning_seconds"]
    tell(f"    {group['windows']} windows, {STEPS} of them of 32 sequences: planned in {1000 * group['planning_seconds']:.1f} ms, {100 * hidden:.1f} % of it while the "
         f"worker had a window to run; packed: {packings}")
    assert sum(packings.values()) >= STEPS, packings  # windows that only load, save or free pack nothing
    assert set(packings) <= {"greedy met the bound", "integer program improved", "greedy proved best", "node limit", "cancelled"}, packings
    # The first window has nothing to hide behind.
    assert hidden > 0.5
    house.clear()


if __name__ == "__main__":
    main([test_hidden])
