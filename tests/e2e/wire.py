"""Hosts on one wire, as network namespaces of this machine: the wire is this process, and it is slow, loses frames and is cut as
a test tells it to. No address and no interface of the machine's own is touched: each host is a namespace with a loopback and a TAP
device, and all frames of these go through here. Needs the right to make both (root), and `ip`, `nsenter` and `unshare`.

usage, by Host alone: wire.py ADDRESS MTU DESCRIPTOR     live as a host in this namespace until DESCRIPTOR's other end is closed
"""

import collections
import fcntl
import heapq
import os
import pathlib
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

from house import Failure

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000
DEVICE = "wire"
MTU = 1500
ETHERNET_BYTES = 14
FRAMES_AT_ONCE = 64
READY, LACKING = b"+", b"-"


def network():
    """Which network namespace this process is in."""
    return os.readlink("/proc/self/ns/net")


class Lacking(Exception):
    """This machine has no room for hosts; says why."""


class Host:
    """A namespace at an address. `prefix` is what a command begins with to run in it. It lives until `close`, or until this
    process ends."""

    def __init__(self, address):
        for program in ("ip", "nsenter", "unshare"):
            if not shutil.which(program):
                raise Lacking(f"there is no {program}")
        self.address = address
        ours, theirs = socket.socketpair()
        command = ["unshare", "--net", sys.executable, "-B", __file__, address, str(MTU), str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
        theirs.close()
        self.channel = ours
        word, fds, _, _ = socket.recv_fds(ours, 1000, 1)
        if word != READY:
            why = word.removeprefix(LACKING).decode() or self.process.stderr.read().strip()
            self.close()
            if word or "unshare:" in why:
                raise Lacking(f"no network namespace with a TAP device can be made here: {why}")
            raise Failure(f"the host at {address} did not come up: {why}")
        (self.device,) = fds
        os.set_blocking(self.device, False)
        self.namespace = os.readlink(f"/proc/{self.process.pid}/ns/net")
        assert self.namespace != network(), "the host is not in a namespace of its own"
        self.prefix = ["nsenter", f"--net=/proc/{self.process.pid}/ns/net"]

    def ip(self, step):
        """A command of `ip`'s in it."""
        subprocess.run([*self.prefix, "ip", *step.split()], check=True)

    def processes(self):
        """Those in its namespace but for the one that keeps it."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/ns/net"):
            try:
                if os.readlink(path) == self.namespace:
                    found.append(int(path.parts[2]))
            except OSError:
                pass  # it has ended, or is of nobody's concern
        return [pid for pid in found if pid != self.process.pid]

    def close(self):
        self.channel.close()
        if hasattr(self, "device"):
            os.close(self.device)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()


def why_there_are_none():
    """What keeps this machine from having hosts, or None."""
    try:
        Host("10.77.0.1").close()
    except Lacking as why:
        return str(why)
    return None


def live(address, mtu, channel):
    """In the namespace: its TAP device, whose descriptor goes to the other end, until that is closed."""
    try:
        device = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", DEVICE.encode(), IFF_TAP | IFF_NO_PI))
    except OSError as error:
        channel.send(LACKING + str(error).encode())
        return
    for step in ("link set lo up", f"addr add {address}/24 dev {DEVICE}", f"link set {DEVICE} mtu {mtu} up"):
        subprocess.run(["ip", *step.split()], check=True)
    socket.send_fds(channel, [READY], [device])
    os.close(device)
    channel.recv(1)


def between(one, other):
    return frozenset((one, other))


class Wire:
    """Joins `count` hosts, 10.77.0.1 and on, as a switch would. Ended with `with`.

    `delay_ms` (one way) and `loss` (a share) may be changed while it runs; `cut` is a set of `between(one, other)`, by the hosts'
    places in `hosts`: nothing passes between these two, and what was on its way is gone. `counts` has the frames that were
    carried, lost, and cut off."""

    def __init__(self, count, delay_ms=0.0, loss=0.0, seed=1):
        self.delay_ms, self.loss, self.cut = delay_ms, loss, frozenset()
        self.counts = collections.Counter()
        self.hosts = []
        self._generator = random.Random(seed)
        self._at = {}  # hardware address -> its host
        self._waiting = []  # (when it is due, a number, source, target, frame), a heap
        self._number = 0
        self._stop, self._stopped = os.pipe()
        self._error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        try:
            for number in range(count):
                self.hosts.append(Host(f"10.77.0.{number + 1}"))
        except BaseException:
            self._close()
            raise
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        os.write(self._stopped, b"x")
        self._thread.join()
        left = {host.address: pids for host in self.hosts if (pids := host.processes())}
        self._close()
        if raised[0] is None:
            assert not left, f"processes are left on the hosts: {left}"
            assert self._error is None, self._error

    def _close(self):
        for host in self.hosts:
            host.close()
        os.close(self._stop)
        os.close(self._stopped)

    def _run(self):
        try:
            self._carry()
        except BaseException as error:  # told by whoever ends the wire
            self._error = error

    def _carry(self):
        number_of = {host.device: number for number, host in enumerate(self.hosts)}
        while True:
            wait = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            ready, _, _ = select.select([self._stop, *number_of], [], [], wait)
            if self._stop in ready:
                return
            for device in ready:
                self._take(device, number_of[device])
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, source, target, frame = heapq.heappop(self._waiting)
                self._give(source, target, frame)

    def _take(self, device, source):
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame = os.read(device, MTU + ETHERNET_BYTES)
            except BlockingIOError:
                return
            self._at[frame[6:12]] = source
            known = self._at.get(frame[:6])
            for target in range(len(self.hosts)) if known is None else [known]:
                if target == source:
                    continue
                if self._generator.random() < self.loss:
                    self.counts["lost"] += 1
                    continue
                self._number += 1
                heapq.heappush(self._waiting, (time.monotonic() + self.delay_ms / 1e3, self._number, source, target, frame))

    def _give(self, source, target, frame):
        if between(source, target) in self.cut:
            self.counts["cut off"] += 1
            return
        try:
            os.write(self.hosts[target].device, frame)
            self.counts["carried"] += 1
        except BlockingIOError:
            self.counts["lost"] += 1


if __name__ == "__main__":
    live(sys.argv[1], int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])))
