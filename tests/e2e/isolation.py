"""Jobs whose bits must not change whatever happens around them, and how what came out is compared."""

import hashlib
import random

from formats import token_rows, write_model
from house import tell

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


class Subjects:
    """Jobs of several ranks, targets, schedules and dropouts, made of a seed, of so many steps each."""

    def __init__(self, seed, steps):
        self.seed, self.steps = seed, steps

    def job(self, rank, targets, batch_size, dropout, schedule, **adapter):
        return {
            "display_name": f"rank-{rank}", "base_model": "small", "training_dataset": "rows", "validation_dataset": "validation",
            "adapter": {"rank": rank, "alpha": 2 * rank, "dropout": dropout, "target_modules": targets, "seed": self.seed + rank, **adapter},
            "training": {"max_steps": self.steps, "batch_size": batch_size, "max_length": 900, "learning_rate": 1e-3, "schedule": schedule,
                         "warmup_steps": 5, "weight_decay": 0.01, "shuffle": True, "seed": self.seed + 7 * rank,
                         "checkpoint_every_steps": 7, "eval_every_steps": 40},
        }

    def jobs(self):
        return [self.job(4, ["q_proj", "v_proj"], 3, 0.1, "COSINE"), self.job(8, ATTENTION + MLP, 2, 0.05, "LINEAR"),
                self.job(13, MLP, 4, 0.25, "CONSTANT"), self.job(64, ATTENTION + ["down_proj"], 2, 0.1, "COSINE", use_rslora=True),
                self.job(5, ATTENTION + MLP, 3, 0.1, "LINEAR", exclude_modules=["layers.0.mlp.up_proj", "k_proj"],
                         rank_pattern={"layers.1.self_attn.q_proj": 32, "down_proj": 2}, alpha_pattern={"[vo]_proj": 40})]

    def prepare(self, house, *model_options, **shape):
        """The base model and the datasets of these jobs."""
        generator = random.Random(self.seed)
        house.lora("model", "add", "small", "--path", write_model(house.folder / "model", seed=self.seed, **shape), *model_options)
        house.add_dataset("rows", token_rows(generator, 37))
        house.add_dataset("strangers", token_rows(generator, 29))
        house.add_dataset("validation", token_rows(generator, 5))

    def compare(self, what, got, want):
        for job, one, other in zip(self.jobs(), got, want, strict=True):
            name = job["display_name"]
            for (step, *a), (_, *b) in zip(one[1], other[1], strict=True):
                assert a == b, f"{what}: {name}: step {step}: {a}, alone {b}"
            assert one[2] == other[2], f"{what}: {name}: evaluations {one[2]}, alone {other[2]}"
            assert one[0] == other[0], f"{what}: {name}: the adapter's bytes differ"
        tell(f"    {what}: {len(got)} adapters equal, bit for bit")


def stranger(steps, rank):
    return {"display_name": "stranger", "base_model": "small", "training_dataset": "strangers",
            "adapter": {"rank": rank, "target_modules": ATTENTION + MLP, "dropout": 0.5},
            "training": {"max_steps": steps, "batch_size": 5, "max_length": 900, "learning_rate": 1e-2, "checkpoint_every_steps": 0}}


def outcome(house, names):
    """What must not change: the adapter's bytes, and every figure of every step."""
    found = []
    for name in names:
        adapter = (house.adapter(name) / "adapter_model.safetensors").read_bytes()
        steps = [(s["step"], s["loss"], s["grad_norm"], s["learning_rate"]) for s in house.objects("metrics", name)]
        evaluations = [(e["step"], e["validation_loss"]) for e in house.objects("metrics", name, "--evaluation")]
        found.append((hashlib.sha256(adapter).hexdigest(), steps, evaluations))
    return found


def packing(jobs):
    mean = sum(job["adapters_per_microbatch"] for job in jobs) / len(jobs)
    tell("    adapters per microbatch: " + ", ".join(f"{j['display_name']} {j['adapters_per_microbatch']:.2f}" for j in jobs) + f"; mean {mean:.2f}")
    return mean


def steps_done_twice_alike(house, names):
    for name in names:
        reasons = {event["reason"] for event in house.objects("events", name)}
        assert "NUMERICS_MISMATCH" not in reasons, f"{name}: a step done again had other figures"
