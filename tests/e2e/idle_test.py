#!/usr/bin/env python3
"""What a daemon takes of the machine while nothing is to be done: with as many idle workers on another host as it takes."""

import os
import time

from hosts import OtherHost, Site, until
from house import main, tell

WORKERS = 64  # as many as a coordinator takes
SECONDS = 20
SHARE_MAX = 0.02
TIMES = 3  # the best of these: on a machine that others use as well the same work takes more of a core


def processor_seconds(pid):
    user, system = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_idle_workers_cost_little():
    host = OtherHost()
    try:
        with Site(host) as site:
            for number in range(WORKERS):
                site.start_other("--memory", "1GiB", "--credentials", site.bundle(f"w{number}"))
            until(lambda: len(site.alive()) == WORKERS, f"{WORKERS} workers are there", 120)
            time.sleep(2)
            shares = []
            while len(shares) < TIMES and min(shares, default=1) >= SHARE_MAX:
                began, before = time.monotonic(), processor_seconds(site.process.pid)
                time.sleep(SECONDS)
                shares.append((processor_seconds(site.process.pid) - before) / (time.monotonic() - began))
                tell(f"    {WORKERS} idle workers cost the daemon {100 * shares[-1]:.2f} % of a core")
            assert min(shares) < SHARE_MAX, shares
        site.clear()
    finally:
        host.close()


if __name__ == "__main__":
    main([test_idle_workers_cost_little])
