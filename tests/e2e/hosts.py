"""A daemon whose workers are on other hosts, over TLS, and such a host."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time

from house import AWAY_STATES, LORAD, WORKER, Failure, House, Result, running_seconds, tell


def until(predicate, what, seconds=60):
    deadline = running_seconds() + seconds
    while not (found := predicate()):
        if running_seconds() > deadline:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(0.05)
    return found


def lorad(*arguments):
    """A command of lorad's that ends; its Result."""
    command = list(map(str, [LORAD, *arguments]))
    return Result(command, subprocess.run(command, capture_output=True, text=True, timeout=60))


def must(result):
    if result.status != 0:
        raise Failure(str(result))
    return result.out


def own_address():
    """An address of this machine that is not loopback; None where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(OSError):
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            address = probe.getsockname()[0]
            return None if address.startswith("127.") else address
    return None


class OtherHost:
    """Another host: a network namespace behind a pair of virtual interfaces. Without the right to make one, this host under its
    own address."""

    def __init__(self):
        self.namespace = f"lorad{os.getpid()}"
        self.link = f"lo{os.getpid()}"[:13]
        # Of four addresses each, so that two tests at once hardly ever have the same.
        high, low = divmod(4 * (os.getpid() % (1 << 14)), 256)
        self.address, self.there, self.prefix = f"10.213.{high}.{low + 1}", f"10.213.{high}.{low + 2}", []
        theirs = f"{self.link}x"
        steps = [f"netns add {self.namespace}", f"link add {self.link} type veth peer name {theirs}",
                 f"link set {theirs} netns {self.namespace}", f"addr add {self.address}/30 dev {self.link}", f"link set {self.link} up",
                 f"-n {self.namespace} addr add {self.there}/30 dev {theirs}", f"-n {self.namespace} link set {theirs} up"]
        if shutil.which("ip") and all(self.ip(step) for step in steps):
            self.prefix = ["ip", "netns", "exec", self.namespace]
            tell("    another network namespace is the other host")
            return
        self.close()
        self.address = own_address() or "127.0.0.2"
        tell(f"    no network namespace can be made here: the other host is this one at {self.address}")

    def ip(self, step):
        return subprocess.run(["ip", *step.split()], capture_output=True).returncode == 0

    def close(self):
        if shutil.which("ip"):
            self.ip(f"link del {self.link}")
            self.ip(f"netns del {self.namespace}")


class Site(House):
    """A daemon that serves workers on another host; its own workers are none."""

    def __init__(self, host, *options):
        """`host`: at whose address the daemon serves, and where other workers are."""
        super().__init__(None, "--workers", "none", *options)
        self.host = host
        self.door = None
        tell("    " + must(lorad("auth", "init", "--data-dir", self.data_dir)).splitlines()[0])

    def bundle(self, worker, *options, path=None):
        path = path or self.folder / f"{worker}.pem"
        must(lorad("auth", "worker", worker, "--data-dir", self.data_dir, "-o", path, *options))
        return path

    def command(self, *options):
        door = [] if "--worker-listen" in options else ["--worker-listen", f"{self.host.address}:0"]
        return super().command(*door, *options)

    def start(self, *options, seconds=60):
        served = r"workers on other hosts are served on (\S+)"
        before = len(re.findall(served, self.log()))
        took = super().start(*options, seconds=seconds)
        until(lambda: len(re.findall(served, self.log())) > before, "the daemon serves workers on other hosts")
        self.door = re.findall(served, self.log())[-1]
        return took

    def start_other(self, *options, log="worker.log"):
        """A worker on the other host, with a log of its own."""
        command = [*self.host.prefix, WORKER, "--coordinator", self.door, "--device", "cpu", "--threads", "1", *options]
        with open(self.folder / log, "ab") as out:
            worker = subprocess.Popen(list(map(str, command)), stdout=out, stderr=out)
        self.workers.append(worker)
        return worker

    def worker_log(self, log="worker.log"):
        return (self.folder / log).read_text(errors="replace")

    def alive(self):
        return sorted(worker["name"] for worker in self.objects("worker", "ls") if worker["state"] not in AWAY_STATES)
