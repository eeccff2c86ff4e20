"""What bf16 costs on a GPU, beside what it costs PEFT there: the reference runs, and of each model six more that PEFT makes
in float32 first. One run's largest difference from float32 is chance as much as precision, so a family is judged by the
mean squares of all its runs together. Skips where there is no GPU, or no torch, transformers and peft.

usage: gpu_bf16_test.py [TEST ...]
"""

import collections
import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import golden
from gpu_test import DEVICE, has_gpu
from house import GOLDEN, ROOT, Skipped, main, tell

DRAWN = 6
# The root of a family's mean square over that of PEFT's.
RATIO_MAX = 1.25


def peft(script, *arguments):
    done = subprocess.run([sys.executable, ROOT / "tests/golden" / script, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{script} failed:\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()


def run_both(folder):
    """{family: [(ours, PEFT's), one pair of each run]}, each what differences() of golden.py says."""
    peft("peft_runs.py", "--drawn", str(DRAWN), GOLDEN, folder)
    theirs = json.loads(peft("peft_bf16.py", GOLDEN)[-1]) | json.loads(peft("peft_bf16.py", folder)[-1])
    golden.add_drawn(folder)
    of = collections.defaultdict(list)
    for (model, run), ours in golden.run_on(DEVICE, "bf16").items():
        reference = theirs[f"{model.replace('-', '_')}/{run}"]
        of[model.split("-drawn")[0]].append((ours, reference))
    return of


def test_bf16_costs_no_more_than_peft():
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "peft")):
        raise Skipped("needs torch, transformers and peft")
    beyond = []
    with tempfile.TemporaryDirectory(prefix="lorad-drawn-") as folder:
        for family, runs in run_both(pathlib.Path(folder)).items():
            said = []
            for what in ("losses", "matrix"):
                ours, theirs = (math.sqrt(sum(run[i][what] ** 2 for run in runs) / len(runs)) for i in range(2))
                said.append(f"{what} {ours:.1e} to {theirs:.1e} ({ours / theirs:.2f})")
                if ours > RATIO_MAX * theirs:
                    beyond.append(f"{family}: {said[-1]}")
            most = max(ours["loss"] / theirs["loss"] for ours, theirs in runs)
            tell(f"    {family}, beside PEFT in {len(runs)} runs: " + ", ".join(said) + f"; one loss {most:.2f}")
    assert not beyond, beyond


if __name__ == "__main__":
    main([test_bf16_costs_no_more_than_peft], lacking=None if has_gpu() else "no GPU")
