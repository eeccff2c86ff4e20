"""Clients that hold on to what they were given: uploads and streams that say nothing, idle connections by the thousand. And
who may not speak at all: other users of the machine. Another client's calls are answered meanwhile, uploads work, and jobs
save their checkpoints.

usage: faults_clients_test.py [TEST ...]
"""

import codecs
import concurrent.futures
import contextlib
import os
import socket
import stat
import threading
import time

from faults import Pace, add_rows, add_small_model, check_no_job_failed, raise_descriptor_limit, small_job, until
from formats import write_model
from house import Failure, House, Skipped, each_below, main, tell
from http2 import Connection
from lorad.v1 import datasets_pb2, jobs_pb2
from lorad.worker.v1 import worker_pb2

# What a login shell gives a daemon.
USUAL_DESCRIPTORS = 1024
UPLOAD_SECONDS = 45  # idle uploads end after 30
UPLOAD = "/lorad.v1.Datasets/CreateDataset"
WATCHES, WATCHES_EACH = 1000, 100
THREADS_MAX = 32
NOBODY = 65534


class UsualHouse(House):
    """A daemon with as many descriptors as usual."""

    def command(self, *options):
        return ["bash", "-c", f"ulimit -S -n {USUAL_DESCRIPTORS} && exec \"$@\"", "bash", *super().command(*options)]


@contextlib.contextmanager
def busy_house():
    """With a job that goes on and saves all the time, and another client that asks for it."""
    with UsualHouse(None, "--workers", "cpu:1", "--worker-threads", 1) as house:
        add_small_model(house)
        add_rows(house, "rows")
        house.job = house.submit(small_job(max_steps=100_000, checkpoint_every_steps=10))
        until(lambda: house.object("show", house.job)["last_checkpoint_step"] > 0, 30, "the first checkpoint")
        yield house
        check_no_job_failed(house)
        house.lora("cancel", house.job)
    house.clear()


def check_house_works(house, name):
    """What must go on meanwhile: a new client is served, a dataset comes in, the job saves."""
    saved = house.object("show", house.job)["last_checkpoint_step"]
    path = house.folder / f"{name}.jsonl"
    path.write_text('{"text": "one"}\n')
    last = []

    def uploaded():
        last[:] = [house.run("dataset", "add", name, path, seconds=20)]
        return last[0].status == 0
    began = time.monotonic()
    try:
        until(uploaded, UPLOAD_SECONDS, "a dataset is stored", pause=1)
    except Failure as failure:
        raise Failure(f"{failure}: {last[0].err.strip()}") from None
    tell(f"    a dataset was stored after {time.monotonic() - began:.1f} s")
    until(lambda: house.object("show", house.job)["last_checkpoint_step"] > saved, 20, "another checkpoint")


def test_uploads_that_send_a_config_and_then_nothing():
    with busy_house() as house:
        connection = Connection(house.address)
        with Pace(house, house.job):
            for i in range(16):
                config = datasets_pb2.CreateDatasetRequest(config={"name": f"slow-{i}"})
                connection.open_call(UPLOAD, config.SerializeToString())
            time.sleep(1)
            check_house_works(house, "other")
        connection.close()


def open_silent_streams(address, connections, streams_each):
    opened = []
    for _ in range(connections):
        with contextlib.suppress(OSError):  # it may be refused, or ended
            opened.append(Connection(address))
            for _ in range(streams_each):
                opened[-1].open_call(UPLOAD)
    tell(f"    {sum(connection.calls() for connection in opened)} calls begun on {len(opened)} connections")
    return opened


def elsewhere():
    """For attackers that stand for those of other machines: these take no processor from the daemon. (In Linux a thread has a priority
    of its own, and gives it to those that it begins.)"""
    return concurrent.futures.ThreadPoolExecutor(1, initializer=lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10))


def silent_streams(connections, streams_each):
    raise_descriptor_limit()
    with busy_house() as house:
        opened = []
        with Pace(house, house.job):
            with elsewhere() as pool:
                opened = pool.submit(open_silent_streams, house.address, connections, streams_each).result()
            time.sleep(2)
            check_house_works(house, "other")
        for connection in opened:
            connection.close()


def test_400_streams_that_send_nothing():
    silent_streams(4, 100)


def test_10_000_half_open_streams():
    silent_streams(100, 100)


def idle_connections(count):
    if raise_descriptor_limit() < 2 * count:
        raise Skipped(f"needs {2 * count} descriptors")
    with busy_house() as house:
        host, port = house.address.rsplit(":", 1)
        opened = []
        with Pace(house, house.job):
            for i in range(count):
                # Every other one has not even said that it speaks HTTP/2.
                with contextlib.suppress(OSError):  # it may be refused
                    opened.append(Connection(house.address).socket if i % 2 else socket.create_connection((host, int(port)), timeout=5))
            time.sleep(2)
            check_house_works(house, "other")
        for connection in opened:
            connection.close()


def test_1100_idle_connections():
    idle_connections(1100)


def test_2000_idle_connections():
    idle_connections(2000)


def threads_of(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def test_1000_watches_take_few_threads():
    """And each of them hears of a change."""
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        add_rows(house, "rows")
        job = house.submit(small_job())
        request = jobs_pb2.WatchJobsRequest(names=[job]).SerializeToString()
        opened = [Connection(house.address) for _ in range(WATCHES // WATCHES_EACH)]
        with Pace(house, job):
            for connection in opened:
                for _ in range(WATCHES_EACH):
                    connection.open_call("/lorad.v1.Jobs/WatchJobs", request, ended=True)
            for connection in opened:
                heard = connection.hear(WATCHES_EACH)
                assert len(heard) == WATCHES_EACH, f"{len(heard)} of {WATCHES_EACH} watches of a connection got the present state"
            threads = threads_of(house.process.pid)
            house.lora("cancel", job)
            for connection in opened:
                assert len(connection.hear(WATCHES_EACH)) == WATCHES_EACH, "a watch did not hear of the cancellation"
        tell(f"    {threads} threads")
        assert threads <= THREADS_MAX, f"{WATCHES} watches take {threads} threads"
        for connection in opened:
            connection.close()
    house.clear()


# ---- other users ----

def is_answered_as(user, address, method, message, ended=True):
    """Whether a process of that user gets an answer to a call."""
    codecs.lookup("idna")  # sockets want it, and the user may not read Python's library
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            connection = Connection(address, timeout=10)
            code = 0 if connection.is_answered(connection.open_call(method, message, ended)) else 1
        except OSError:
            code = 1  # not even connected, or cut
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    answered = {0: True, 1: False}
    assert os.WEXITSTATUS(status) in answered, "the other user's process failed"
    return answered[os.WEXITSTATUS(status)]


def test_other_users_of_the_machine_may_not_speak():
    if os.geteuid() != 0:
        raise Skipped("needs root")
    hello = worker_pb2.WorkerMessage(hello={"protocol_version": 1, "worker": "guest", "device": "cpu", "memory_bytes": 1 << 30, "threads": 1})
    calls = [("/lorad.v1.Jobs/ListJobs", b"", True), ("/lorad.v1.Datasets/ListDatasets", b"", True), ("/lorad.v1.Cluster/GetCluster", b"", True),
             ("/lorad.worker.v1.Coordinator/Control", hello.SerializeToString(), False)]
    with House(None, "--workers", "none") as house:
        for method, message, ended in calls:
            assert is_answered_as(0, house.address, method, message, ended), f"root was not answered by {method}"
        allowed = [method for method, message, ended in calls if is_answered_as(NOBODY, house.address, method, message, ended)]
        assert not allowed, f"user {NOBODY} was answered by {', '.join(allowed)}"
        house.lora("ls")
    house.clear()


def test_others_may_not_read_the_data_directory():
    before = os.umask(0o022)
    try:
        with House(None, "--workers", "cpu:1") as house:
            add_small_model(house)
            add_rows(house, "rows")
            house.wait([house.submit(small_job(max_steps=6))])
            found = [(house.data_dir, house.data_dir.lstat()), *each_below(house.data_dir, lambda path: (path, path.lstat()))]
            wrong = [f"{path.relative_to(house.folder)} {stat.S_IMODE(is_.st_mode):o}" for path, is_ in found
                     if stat.S_IMODE(is_.st_mode) != (0o700 if stat.S_ISDIR(is_.st_mode) else 0o600)]
            assert len(found) > 10, found
            assert not wrong, f"{len(wrong)} can be used by others: {', '.join(wrong[:6])}"
        house.clear()
    finally:
        os.umask(before)


def test_a_model_through_a_link_to_a_name_that_is_not_utf8():
    """It is refused, or kept as it is; either way the daemon can be started again."""
    with House(None, "--workers", "none") as house:
        add_small_model(house)
        strange = os.fsencode(house.folder) + b"/\xff\xfe-model"
        os.rename(write_model(house.folder / "other", seed=2), strange)
        link = house.folder / "link"
        os.symlink(strange, os.fsencode(link))
        added = house.run("model", "add", "strange", "--path", link)
        tell(f"    {added.err.strip()[:200] or 'it was registered'}")
        house.kill()
        house.start()
        names = {model["name"] for model in house.objects("model", "ls")}
        assert names == ({"small", "strange"} if added.status == 0 else {"small"}), names
    house.clear()


if __name__ == "__main__":
    main([test_uploads_that_send_a_config_and_then_nothing, test_400_streams_that_send_nothing, test_10_000_half_open_streams,
          test_1100_idle_connections, test_2000_idle_connections,
          test_1000_watches_take_few_threads, test_other_users_of_the_machine_may_not_speak,
          test_others_may_not_read_the_data_directory, test_a_model_through_a_link_to_a_name_that_is_not_utf8])
