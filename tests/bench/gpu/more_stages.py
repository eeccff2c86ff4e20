"""A scenario of `lorad-plan pipeline` for a model on more stages than there are GPUs, from what two stages took.

usage: more_stages.py MEASURED SCENARIO [--capacity N] > NEW

MEASURED is what stages.py --json wrote; SCENARIO gives stages, adapters and batches, and how much of them is measured. The model
has all layers of its shape (tools/make-model). A layer's forward and backward are what the two stages took for it, least squares
over their microbatches, with the head for as many layers as its multiplications are; so cards of different speeds come out as
their mean. Attention has its share of the layer.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

MAKE_MODEL = pathlib.Path(__file__).resolve().parents[3] / "tools/make-model"
FIRST = 16  # microbatches that build attention's plans: they are left out
KINDS = {"forward": "FORWARD", "backward": "BACKWARD"}


def line(points):
    """Constant and slope of least squares, neither below 0."""
    n, x, y = len(points), sum(p[0] for p in points), sum(p[1] for p in points)
    xx, xy = sum(p[0] ** 2 for p in points), sum(p[0] * p[1] for p in points)
    slope = (n * xy - x * y) / (n * xx - x * x)
    constant = (y - slope * x) / n
    if slope < 0:
        return y / n, 0
    return (constant, slope) if constant >= 0 else (0, xy / xx)


class Weights:
    """How many weights a layer's two halves and the head multiply by."""

    def __init__(self, config):
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        width = config.get("head_dim", hidden // heads)
        self.attention = 2 * hidden * width * (heads + config["num_key_value_heads"])
        self.mlp = 3 * hidden * config["intermediate_size"]
        self.head = hidden * config["vocab_size"]
        self.layer = self.attention + self.mlp
        self.layers = config["num_hidden_layers"]


def weights_of(shape):
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([MAKE_MODEL, shape, directory], check=True, stdout=subprocess.DEVNULL)
        return Weights(json.loads((pathlib.Path(directory) / "config.json").read_text()))


def layers_of(trace, weights):
    """How many layers each stage has, the head counted as some."""
    layers = [(stage["end_block"] - stage["first_block"]) / 2 for stage in trace["stages"]]
    return layers[:-1] + [layers[-1] + weights.head / weights.layer]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=pathlib.Path)
    parser.add_argument("scenario", type=pathlib.Path)
    parser.add_argument("--capacity", type=int, default=0, help="default: what was measured")
    options = parser.parse_args()
    measured, scenario = json.loads(options.measured.read_text()), json.loads(options.scenario.read_text())
    trace = measured["trace"]
    tokens = {one["number"]: one["tokens"] for one in trace["microbatches"]}
    weights = weights_of(measured["model"])
    layers = layers_of(trace, weights)

    def points(kind, stage, share):
        return [(tokens[bar["microbatch"]], share * (bar["end_ms"] - bar["begin_ms"])) for bar in trace["simulated_bars"]
                if bar["kind"] == kind and bar["stage"] == stage and bar["microbatch"] > FIRST]

    def part(of_weights):
        share = of_weights / weights.layer
        costs = {}
        for name, kind in KINDS.items():
            constant, slope = line([point for stage in range(len(layers)) for point in points(kind, stage, share / layers[stage])])
            costs[name] = {"constant_ms": constant, "token_ms": slope}
        return costs

    constant, slope = line(points("ACTIVATIONS", 1, 1))
    scenario |= {
        "about": [f"{options.scenario.name}, with the times that {options.measured.name} has of {len(layers)} stages."],
        "capacity": options.capacity or measured["group"]["capacity_tokens"],
        "model": {"layers": weights.layers, "cut": "half_layers", "attention": part(weights.attention), "mlp": part(weights.mlp),
                  "head": part(weights.head) | {"trained_only": False}},
        "transfer": {"latency_ms": constant, "token_ms": slope},
    }
    json.dump(scenario, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
