"""Hosts that one wire joins, as network namespaces of this machine: the wire is this process, and it is slow, lossy and cut as
it is told. Needs the right to make a namespace and a TAP device in it."""

import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import socket
import struct
import subprocess
import threading
import time

from house import Skipped

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000
MTU = 9000


def _live_in_a_namespace(address, channel):
    """In a child: a namespace with a TAP device, whose descriptor goes to the parent; then nothing until it is killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        os._exit(1)
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", b"wire", IFF_TAP | IFF_NO_PI))
    for step in ("link set lo up", f"addr add {address}/24 dev wire", f"link set wire mtu {MTU} up"):
        subprocess.run(["ip", *step.split()], check=True)
    socket.send_fds(channel, [b"x"], [device])
    signal.pause()


class Host:
    """A namespace at an address; `prefix` is what a command begins with to run in it."""

    def __init__(self, address):
        self.address = address
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ours.close()
                _live_in_a_namespace(address, theirs)
            finally:
                os._exit(1)
        theirs.close()
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        ours.close()
        if not fds:
            os.waitpid(self.pid, 0)
            raise Skipped("no network namespace with a TAP device can be made here")
        self.device = fds[0]
        os.set_blocking(self.device, False)
        self.prefix = ["nsenter", f"--net=/proc/{self.pid}/ns/net"]

    def close(self):
        os.close(self.device)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Wire:
    """Carries the frames of `count` hosts, 10.77.0.1 and on. Ended with `with`.

    `delay_ms` (one way) and `loss` (a share) may be changed while it runs; `cut` is a set of frozensets of two hosts' numbers
    between whom nothing passes."""

    def __init__(self, count, delay_ms=0.0, loss=0.0, seed=1):
        self.delay_ms, self.loss, self.cut = delay_ms, loss, set()
        self.hosts = []
        self.frames = 0
        self._generator = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        try:
            for number in range(count):
                self.hosts.append(Host(f"10.77.0.{number + 1}"))
        except BaseException:
            self._close_hosts()
            raise
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._close_hosts()

    def _close_hosts(self):
        for host in self.hosts:
            host.close()

    def between(self, one, other):
        return frozenset((one, other))

    def _run(self):
        by_device = {host.device: number for number, host in enumerate(self.hosts)}
        at = {}  # hardware address -> host
        waiting, order = [], 0
        while not self._stop.is_set():
            pause = 0.05 if not waiting else max(0.0, min(0.05, waiting[0][0] - time.monotonic()))
            ready, _, _ = select.select(list(by_device), [], [], pause)
            for device in ready:
                for frame in self._read(device):
                    source = by_device[device]
                    at[frame[6:12]] = source
                    known = at.get(frame[:6])
                    for target in [known] if known is not None else [n for n in range(len(self.hosts)) if n != source]:
                        if target == source or self.between(source, target) in self.cut or self._generator.random() < self.loss:
                            continue
                        order += 1
                        heapq.heappush(waiting, (time.monotonic() + self.delay_ms / 1e3, order, target, source, frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, target, source, frame = heapq.heappop(waiting)
                if self.between(source, target) in self.cut:
                    continue
                self.frames += 1
                try:
                    os.write(self.hosts[target].device, frame)
                except (BlockingIOError, OSError):
                    pass  # lost, as a wire loses

    @staticmethod
    def _read(device):
        for _ in range(64):
            try:
                yield os.read(device, MTU + 64)
            except BlockingIOError:
                return
