#!/usr/bin/env python3
"""What a daemon takes of the machine while nothing is to be done: with as many idle workers on another host as it takes."""

import os
import time

from hosts import OtherHost, Site, until
from house import main, tell

WORKERS = 64  # as many as a coordinator takes
SECONDS = 20


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
            began, before = time.monotonic(), processor_seconds(site.process.pid)
            time.sleep(SECONDS)
            share = (processor_seconds(site.process.pid) - before) / (time.monotonic() - began)
            tell(f"    {WORKERS} idle workers cost the daemon {100 * share:.2f} % of a core")
            assert share < 0.02, share
        site.clear()
    finally:
        host.close()


if __name__ == "__main__":
    main([test_idle_workers_cost_little])
