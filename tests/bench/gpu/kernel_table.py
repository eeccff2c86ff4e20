"""Where the time of a step goes on the GPU, kernel by kernel, from a trace of kernel_trace.cc.

usage: kernel_table.py TRACE --steps-by NAME

A step ends with a launch of a kernel whose name has NAME in it (AdamWKernel: one for all jobs whose batches end together).
The first 40 % and the last 20 % of the steps are left out: models load there, jobs come and go. A kernel's time is what
it adds to the end of the last: kernels that overlap are not counted twice; `before` is the time a step in which nothing
ran until one of this name did, `longest` the longest such time at once.
"""

import argparse
import collections
import re

# What kernels are called in the table, by the first pattern found in their name.
NAMES = (
    (r"HopperKernel.*Product\)0.*Finish\)1", "product forward, SwiGLU"),
    (r"HopperKernel.*Product\)0.*Finish\)4", "product forward, rope"),
    (r"HopperKernel.*Product\)1.*Finish\)2", "product dx, SwiGLU backward"),
    (r"HopperKernel.*Product\)0", "product forward"),
    (r"HopperKernel.*Product\)1", "product dx"),
    (r"backward::.*Kernel<.*Part\)0", "attention backward, keys"),
    (r"backward::.*Kernel<.*Part\)1", "attention backward, queries"),
    (r"::(\w+?)(Kernel)?[<(]", None),
)


def short(name):
    for pattern, text in NAMES:
        found = re.search(pattern, name)
        if found:
            return text or found[1]
    return re.sub(r"[<(].*", "", name)[:60]


def read(path):
    rows = []
    for line in open(path):
        parts = line.rstrip("\n").split(" ", 2)
        if len(parts) == 3:
            rows.append((int(parts[0]), int(parts[1]), parts[2]))
    rows.sort()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--steps-by", required=True)
    options = parser.parse_args()
    rows = read(options.trace)
    marks = [i for i, row in enumerate(rows) if options.steps_by in row[2]]
    marks = marks[len(marks) * 2 // 5:len(marks) * 4 // 5]
    if len(marks) < 2:
        raise SystemExit(f"{options.trace}: fewer than two steps after the warm-up")
    steps = len(marks) - 1
    rows = rows[marks[0]:marks[-1]]
    took = collections.Counter()
    count = collections.Counter()
    before = collections.Counter()
    longest = collections.Counter()
    until = rows[0][0]
    for begin, end, name in rows:
        gap = max(0, begin - until)
        before[short(name)] += gap
        longest[short(name)] = max(longest[short(name)], gap)
        took[short(name)] += max(0, end - max(begin, until))
        count[short(name)] += 1
        until = max(until, end)
    print(f"{'kernel':60s} {'a step':>8s} {'us each':>9s} {'ms a step':>10s} {'before, ms':>11s} {'longest, us':>12s}")
    for name, ns in took.most_common():
        print(f"{name:60s} {count[name] / steps:8.1f} {ns / count[name] / 1e3:9.1f} {ns / steps / 1e6:10.3f} "
              f"{before[name] / steps / 1e6:11.3f} {longest[name] / 1e3:12.1f}")
    print(f"{'all':60s} {len(rows) / steps:8.1f} {'':9s} {(until - rows[0][0]) / steps / 1e6:10.3f} "
          f"{before.total() / steps / 1e6:11.3f} ({steps} steps)")


main()
