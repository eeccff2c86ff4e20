"""Tokens a second of one model on several GPUs as stages, beside what one of them does alone with the same jobs.

usage: stages.py [--stages N] [--model SHAPE [--layers N]] [--transport auto|peer|nccl|sockets] [--sequences N] [--microbatch N] [--steps N]
                 [--json FILE] [--trace FILE]

The shape of Qwen2.5-14B with random weights, four adapters, sequences of mixed lengths, N of them in a batch (training.py
has the rest). Microbatches are as long as lorad finds right for either, where it is not said: those of a pipeline are
shorter. Skips where there are too few GPUs. Bars: the 14B on two 1.93 times one GPU, Qwen2.5-3B on four 3.8 times.

With --layers the model has so many, and one GPU alone trains a stage's share of them. The bar is 0.95 of that, and 8,800
tokens/s for all 80 of Llama-3.1-70B on four. So the stages of a model that is too large for the GPUs there are can be measured;
FILE of --json has each microbatch's times (more_stages.py).
"""

import argparse
import json
import pathlib
import subprocess

from training import complete, run_lorad

from house import WORKER, tell  # by the path that training has set

SETTING = dict(adapters=4, length=0)
BARS = {("qwen2.5-14b", 2): 1.93, ("qwen2.5-3b", 4): 3.8}  # times one GPU
BAR_OF_STAGE = 0.95
TOKENS_BARS = {("llama-3.1-70b", 80, 4): 8800}  # a second


def count_gpus():
    lines = subprocess.run([WORKER, "--list-devices"], capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(line.startswith("cuda:") for line in lines)


def ways(log):
    """How each stage says that it reaches its neighbours."""
    return [line[line.index("stage "):] for line in log.splitlines() if " reaches stage " in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--model", default="qwen2.5-14b")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--microbatch", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--trace", type=pathlib.Path, help="a Chrome trace of the stages")
    options = parser.parse_args()
    stages = options.stages
    if count_gpus() < stages:
        tell(f"skipped: fewer than {stages} GPUs")
        return
    setting = complete(SETTING | {"model": options.model, "sequences": options.sequences, "microbatch": options.microbatch,
                                  "layers": options.layers})
    alone = run_lorad(setting | {"layers": options.layers // stages}, options.steps)
    together = run_lorad(setting, options.steps, stages, options.transport)
    for way in ways(together["log"]):
        tell(f"    {way}")
    for what, run in (("one GPU", alone), (f"{stages} stages", together)):
        group = run["group"]
        tell(f"    {what}: microbatches of {group['capacity_tokens']} tokens at most, {group['adapters_per_microbatch']:.1f} "
             f"adapters in each, {group.get('recomputation')}")
    for number, stage in enumerate(together["group"]["stages"]):
        tell(f"    stage {number}: busy {100 * stage['busy']:.1f} %, transfer {100 * stage['transfer']:.1f} %, "
             f"{together['peak_bytes'][number] / 2**30:.2f} GiB used, {together['estimated_bytes'][number] / 2**30:.2f} estimated")
    trace = together["trace"]
    if not trace["simulated_bars"]:
        raise SystemExit("what the stages did is in no order that can be run again: their clocks are off")
    tell(f"    bubble {100 * trace['bubble_ratio']:.2f} % over {len(trace['microbatches'])} microbatches, {100 * trace['simulated_bubble_ratio']:.2f} % "
         f"of the same operations without waits; one GPU alone idle {100 * alone['trace']['bubble_ratio']:.2f} %")
    if options.trace:
        options.trace.write_text(together["chrome_trace"])
    ratio = together["tokens_per_second"] / alone["tokens_per_second"]
    bar = BAR_OF_STAGE if options.layers else BARS.get((options.model, stages))
    tokens_bar = TOKENS_BARS.get((options.model, options.layers, stages))
    model = f"{options.model}, {options.layers} layers, on one GPU {options.layers // stages} of them" if options.layers else options.model
    tell(f"{model}: {alone['tokens_per_second']:,.0f} tokens/s on one GPU, {together['tokens_per_second']:,.0f} on {stages} as "
         f"stages{f' (bar {tokens_bar:,})' if tokens_bar else ''}, {ratio:.3f} times as many{f' (bar {bar})' if bar else ''}; alone "
         f"{alone['peak_bytes'][0] / 2**30:.2f} GiB used, {alone['estimated_bytes'][0] / 2**30:.2f} estimated")
    if options.json:
        options.json.write_text(json.dumps({"model": options.model, "alone": alone["tokens_per_second"], "stages": together["tokens_per_second"],
                                            "ratio": ratio, "group": together["group"], "trace": trace}, indent=2) + "\n")


if __name__ == "__main__":
    main()
