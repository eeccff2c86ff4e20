"""Uploads, downloads and jobs of the Python package as somebody sees them who looks on: in a terminal, in a notebook and in a log, by
tqdm and without it. The daemon is the test's own, and slow.

usage: python_transfers_test.py [TEST...]
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import pathlib
import pty
import re
import resource
import struct
import subprocess
import sys
import tempfile
import termios
import time
import types
from concurrent import futures

import python_package
from house import drawn_on, main

FOLDER = python_package.load()

import grpc  # noqa: E402
import lorad  # noqa: E402
from lorad import progress, transfers  # noqa: E402
from lorad.v1 import (adapters_pb2, adapters_pb2_grpc, checkpoints_pb2, checkpoints_pb2_grpc, cluster_pb2,  # noqa: E402
                      cluster_pb2_grpc, datasets_pb2, datasets_pb2_grpc, jobs_pb2, jobs_pb2_grpc)

SIZE = 24 << 20
SECONDS = 3.0  # that it takes to move them
CONTENT = bytes(range(256)) * (SIZE // 256)
FILES = [checkpoints_pb2.CheckpointFile(name="adapter_config.json", size_bytes=2, sha256=hashlib.sha256(b"{}").hexdigest()),
         checkpoints_pb2.CheckpointFile(name="adapter_model.safetensors", size_bytes=SIZE, sha256=hashlib.sha256(CONTENT).hexdigest())]
# As tqdm writes it: 45%|####   | 10.8M/24.0M [00:01<00:01, 9.9MB/s], and as we do where it is not there.
TQDM = r"{} \S+: +(\d+)%\|.*\| [\d.]+[kM]/24\.0M \[\d\d:\d\d<\d\d:\d\d, +[\d.]+[kM]B/s\]"
OURS = r"{}(?: \S*)?  (\d+)%  [\d.]+ [KM]iB of 24\.0 MiB  [\d.]+ MiB/s  \ds left"
SCRIPT = """
import pathlib, sys; sys.path[:0] = sys.argv[3:]
folder = pathlib.Path(sys.argv[2])
if "tqdm" not in folder.name: sys.modules["tqdm"] = None
import lorad
with lorad.connect(sys.argv[1], progress=False if "silent" in folder.name else None) as client:
    client.datasets.add(folder / "rows.jsonl")
    client.adapters.add("mine", folder / "adapter")
    client.job("job-aaaaaaaa").adapter(folder / "fetched")
"""


class Daemon(adapters_pb2_grpc.AdaptersServicer, checkpoints_pb2_grpc.CheckpointsServicer, cluster_pb2_grpc.ClusterServicer,
             datasets_pb2_grpc.DatasetsServicer, jobs_pb2_grpc.JobsServicer):
    """Takes and gives bytes slowly. `cuts`: so many uploads break off in their middle."""

    def __init__(self, seconds=SECONDS, cuts=0):
        self.seconds, self.cuts = seconds, cuts

    def _take(self, requests, context):
        taken = 0
        for request in requests:
            taken += len(request.chunk)
            time.sleep(self.seconds * len(request.chunk) / SIZE)
            if self.cuts and taken > SIZE / 2:
                self.cuts -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        return taken

    def GetCluster(self, request, context):
        return cluster_pb2.ClusterStatus()

    def GetDataset(self, request, context):
        context.abort(grpc.StatusCode.NOT_FOUND, "there is none")

    def CreateDataset(self, requests, context):
        return datasets_pb2.Dataset(size_bytes=self._take(requests, context))

    def ImportAdapter(self, requests, context):
        self._take(requests, context)
        return adapters_pb2.Adapter(name="mine")

    def GetJob(self, request, context):
        return jobs_pb2.Job(name=request.name)

    def GetCheckpoint(self, request, context):
        return checkpoints_pb2.Checkpoint(step=1, files=FILES)

    def DownloadCheckpoint(self, request, context):
        content = CONTENT if request.file.endswith("safetensors") else b"{}"
        for begin in range(0, len(content), 1 << 18):
            piece = content[begin:begin + (1 << 18)]
            time.sleep(self.seconds * len(piece) / SIZE)
            yield checkpoints_pb2.DownloadCheckpointResponse(chunk=piece)


@contextlib.contextmanager
def listening(daemon):
    server = grpc.server(futures.ThreadPoolExecutor(4))
    for service in (adapters_pb2_grpc.add_AdaptersServicer_to_server, checkpoints_pb2_grpc.add_CheckpointsServicer_to_server,
                    cluster_pb2_grpc.add_ClusterServicer_to_server, datasets_pb2_grpc.add_DatasetsServicer_to_server,
                    jobs_pb2_grpc.add_JobsServicer_to_server):
        service(daemon, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def folder_with_files(name):
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-", dir=os.environ.get("TEST_TMPDIR")))
    (folder / "adapter").mkdir()
    (folder / "adapter/adapter_config.json").write_bytes(b"{}")
    (folder / "adapter/adapter_model.safetensors").write_bytes(CONTENT)
    (folder / "rows.jsonl").write_bytes(b"{}\n" * (SIZE // 3))
    return folder


def opened_terminal(columns):
    """Both ends of a terminal: ours, which shows what is written there, and that of who writes."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return screen, terminal


def seen_in_terminal(name, columns):
    """What the script writes to a terminal of so many columns."""
    folder = folder_with_files(name)
    screen, terminal = opened_terminal(columns)
    with listening(Daemon()) as address:
        child = subprocess.Popen([sys.executable, "-c", SCRIPT, address, folder, FOLDER, *python_package.NEEDS], stderr=terminal)
        os.close(terminal)
        seen = drawn_on(screen)
        assert child.wait() == 0, seen
    assert (folder / "fetched/adapter_model.safetensors").read_bytes() == CONTENT
    return seen


def check_shown(seen, form, columns):
    for what in ("uploading", "importing", "downloading"):
        lines = [line for line in re.split(r"[\r\n]|\x1b\[K", seen) if what in line]
        shares = [int(found[1]) for line in lines if (found := re.fullmatch(form.format(what), line.strip()))]
        assert len(shares) >= 3, f"{what} is shown {len(shares)} times as it should be:\n{seen!r}"
        assert shares == sorted(shares) and shares[0] > 0 and shares[-1] > shares[0], (what, shares)
        assert all(len(line) < columns + 1 for line in lines), max(lines, key=len)


def test_bars_of_tqdm_in_a_terminal():
    seen = seen_in_terminal("tqdm", 100)
    check_shown(seen, TQDM, 100)
    assert seen.endswith("\r") and not seen.rsplit("\r", 2)[1].strip(), f"a bar stays: {seen[-200:]!r}"


def test_lines_in_a_terminal_without_tqdm():
    seen = seen_in_terminal("plain", 60)  # so the names are cut
    check_shown(seen, OURS, 60)
    assert seen.endswith("\r\x1b[K"), f"a line stays: {seen[-200:]!r}"


def test_nothing_is_shown_where_it_is_not_wanted():
    assert seen_in_terminal("silent-tqdm", 80) == ""


@contextlib.contextmanager
def stderr_on_terminal(columns):
    """stderr is a terminal of so many columns; what was written to it is in the list afterwards."""
    screen, terminal = opened_terminal(columns)
    written, stderr = [], sys.stderr
    with open(terminal, "w", encoding="utf-8") as sys.stderr:
        try:
            yield written
        finally:
            sys.stderr = stderr
    written.append(drawn_on(screen))


def a_running_job(**fields):
    return jobs_pb2.Job(name="job-aaaaaaaa", state=jobs_pb2.Job.RUNNING, total_steps=90, tokens_per_second=212, **fields)


@contextlib.contextmanager
def clock_of(module):
    """The module's clock in a list; it stands unless the test moves it."""
    clock, real = [100.0], module.time
    module.time = types.SimpleNamespace(monotonic=lambda: clock[0])
    try:
        yield clock
    finally:
        module.time = real


def test_a_job_in_a_terminal_without_tqdm():
    """One line that is drawn over: warnings stand above it, and its end stays."""
    job = a_running_job()
    with stderr_on_terminal(80) as written, python_package.stand_ins({"tqdm.auto": None}):
        line = progress.choose(None)
        for step in range(9):
            job.step, job.loss = 10 * step, 1 / (step + 1)
            if step == 4:
                job.warnings.append("few rows")
            if step == 6:
                job.unsaved = "the disk is full, and this is said at length"
            line.show(job)
            time.sleep(progress.DRAW_SECONDS)
        job.state, job.step = jobs_pb2.Job.SUCCEEDED, 90
        job.ClearField("unsaved")
        line.show(job)
        line.close()
    (seen,) = written
    above, end = seen.split("job-aaaaaaaa  warning: few rows\r\n")
    assert above.endswith("\r\x1b[K") and above.count("\n") == 0 and above.count("RUNNING  step ") >= 4, seen
    assert end.count("\n") == 1 and end.endswith("SUCCEEDED  step 90/90  loss 0.1111  212 tokens/s\x1b[K\r\n"), seen
    drawn = [line for line in re.split(r"\r|\n|\x1b\[K", seen) if line]
    assert any("not saved: " in line for line in drawn) and max(map(len, drawn)) == 79, drawn


def test_what_changes_is_drawn_at_once():
    """Though no time has passed: a line under a warning, and why a job is stalled or not saved, in a terminal and in a log."""
    job, log = a_running_job(step=10), io.StringIO()
    with stderr_on_terminal(80) as written, clock_of(progress):
        lines = [progress.Line(), progress.Line(log)]
        for change in ({}, {"step": 11}, {"warnings": ["few rows"]}, {"step": 12}, {"unsaved": "full"}, {"stalled": "low"}):
            job.MergeFrom(jobs_pb2.Job(**change))
            for line in lines:
                line.show(job)
    (seen,) = written
    (drawn_again,) = re.findall(r"warning: few rows\r\n\r(.*?)\x1b\[K", seen)
    assert drawn_again == "job-aaaaaaaa  RUNNING  step 11/90  212 tokens/s", seen
    for text in (seen.replace("\x1b[K", "\n"), log.getvalue()):
        steps = [line.strip() for line in text.splitlines() if "step" in line]
        assert [line.split("tokens/s")[1] for line in steps][-2:] == ["  not saved: full", "  not saved: full  stalled: low"], text
        assert "step 12/90  212 tokens/s\n" not in text, text


class Telling(lorad.Callback):
    """Prints what it is told to stderr, as many print to a terminal."""

    def on_begin(self, job):
        print("told of the beginning", file=sys.stderr)

    def on_step(self, job, step):
        print(f"told of step {step['step']}", file=sys.stderr)


def test_what_callbacks_print_is_not_behind_what_is_drawn():
    def metrics(_, request):
        rows = range(request.after_step + 1, job.info.step + 1) if request.series == jobs_pb2.GetMetricsRequest.TRAINING else ()
        return jobs_pb2.GetMetricsResponse(steps=[jobs_pb2.StepMetrics(step=step) for step in rows])

    states = [a_running_job(step=step) for step in range(3)] + [jobs_pb2.Job(name="job-aaaaaaaa", state=jobs_pb2.Job.SUCCEEDED, step=3)]
    connection = types.SimpleNamespace(
        watch=lambda names, timeout: (jobs_pb2.WatchJobsResponse(job=state) for state in states), call=metrics,
        jobs=types.SimpleNamespace(GetMetrics=None))
    for modules in ({"tqdm.auto": None}, {}):
        job = lorad.Job(connection, a_running_job())
        with stderr_on_terminal(80) as written, python_package.stand_ins(modules):
            job.wait(callbacks=[Telling()])
        (seen,) = written
        told = re.findall(r"([^\r\n]*)told of (the beginning|step \d)\r\n\r([^\r\n]*)", seen)
        assert [what for _, what, _ in told] == ["the beginning", "step 1", "step 2", "step 3"], seen
        assert all(before in ("", "\x1b[K") and "job-aaaaaaaa" in after for before, _, after in told[1:]), (told, seen)


class Console(io.StringIO):
    """A terminal to who asks, as those of some editors are, without a descriptor."""

    def isatty(self):
        return True


def test_a_terminal_of_no_width_has_lines():
    with stderr_on_terminal(0) as written, clock_of(transfers) as clock:
        for out in (sys.stderr, console := Console()):
            line = progress.Line(out)
            line.show(a_running_job(step=10))
            line.close()
            transfer = transfers.Line("uploading rows", 100, out)
            clock[0] += transfers.LINE_SECONDS
            transfer.at(50)
            transfer.close()
    lines = r"job-aaaaaaaa  RUNNING  step 10/90  212 tokens/s\r?\nuploading rows  50%  50 B of 100 B  5 B/s  10s left\r?\n"
    for seen in (*written, console.getvalue()):
        assert re.fullmatch(lines, seen), seen


def test_a_job_by_tqdm_says_why_it_is_not_saved():
    """At once, before the figures of one that trains on, and behind why one does nothing."""
    job = a_running_job(step=10)
    with stderr_on_terminal(150) as written:
        bar = progress.choose(True)
        bar.show(job)
        job.unsaved = "the disk is full"
        bar.show(job)
        job.stalled = "its last checkpoint is not written"
        bar.show(job)
        bar.close()
    (seen,) = written
    assert re.search(r"RUNNING: .*, not saved: the disk is full, 212 tokens/s\]", seen), seen
    assert re.search(r"RUNNING: .*, its last checkpoint is not written, not saved: the disk is full\]", seen), seen


def test_a_download_that_has_no_room():
    """It says which file, and leaves no part of it; what is something else's stays."""
    folder = folder_with_files("room")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with listening(Daemon(seconds=0)) as address, lorad.connect(address, progress=False) as client:
        job = client.job("job-aaaaaaaa")
        resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, limit[1]))
        try:
            error = python_package.error_of(lorad.FileError, job.adapter, folder / "fetched")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        large = folder / "fetched/adapter_model.safetensors"
        assert isinstance(error, OSError) and (error.errno, error.filename) == (errno.EFBIG, str(large)), error
        assert str(error) == f"FILE_UNWRITABLE: {large}: File too large; name a folder that you may write to and that has room", error
        assert [*(folder / "fetched").iterdir()] == []
        (folder / "fetched/adapter_model.safetensors").write_bytes(b"another's")
        error = python_package.error_of(lorad.AlreadyExistsError, job.adapter, folder / "fetched")
        assert error.reason == "DIRECTORY_EXISTS" and (folder / "fetched/adapter_model.safetensors").read_bytes() == b"another's"
        job.adapter(folder / "fetched", replace=True)
        assert sorted(path.name for path in (folder / "fetched").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_folders_that_cannot_be_made_or_read():
    folder = folder_with_files("folders")
    (folder / "dangling").symlink_to(folder / "gone")
    (folder / "taken/adapter_config.json").mkdir(parents=True)
    (folder / "ring").symlink_to(folder / "ring")
    with listening(Daemon(seconds=0)) as address, lorad.connect(address, progress=False) as client:
        job = client.job("job-aaaaaaaa")
        for path in (folder / "rows.jsonl", folder / "dangling"):
            error = python_package.error_of(lorad.AlreadyExistsError, job.adapter, path)
            assert error.reason == "DIRECTORY_EXISTS", error
            assert f"'{path}' is there already, and no directory: name another folder" in str(error), error
        remedy = "; name a folder that you may write to and that has room"
        for path, keywords, where, number in (
                (folder / "rows.jsonl/below", {}, folder / "rows.jsonl/below", errno.ENOTDIR), ("x" * 300, {}, "x" * 300, errno.ENAMETOOLONG),
                (folder / "taken", {"replace": True}, folder / "taken/adapter_config.json", errno.EISDIR),
                ("/proc/none", {}, "/proc/none", errno.ENOENT)):
            error = python_package.error_of(lorad.FileError, job.adapter, path, **keywords)
            assert (error.reason, error.errno) == ("FILE_UNWRITABLE", number), error
            assert str(error) == f"FILE_UNWRITABLE: {where}: {os.strerror(number)}{remedy}", error
        assert [path.name for path in (folder / "taken").iterdir() if path.name.startswith(".")] == []
        for call, arguments in ((job.adapter, ()), (client.adapters.add, ("mine",))):
            for path in ("a\0b", "\ud800"):
                assert "path: holds what no path does: '" in str(python_package.error_of(lorad.InvalidError, call, *arguments, path)), path
        error = python_package.error_of(lorad.FileError, client.adapters.add, "mine", "x" * 300)
        assert error.reason == "FILE_UNREADABLE" and "may you read it?" in str(error), error
        assert "it has no adapter_model" in str(python_package.error_of(lorad.InvalidError, client.adapters.add, "mine", folder / "ring"))


class FakeBar:
    """What tqdm is told."""
    made = []

    def __init__(self, **said):
        self.said, self.n, self.places, self.closed = said, 0, [], False
        FakeBar.made.append(self)

    def update(self, count):
        self.n += count
        self.places.append(self.n)

    def close(self):
        self.closed = True


def notebook():
    """As Jupyter's kernel looks to who asks, with a tqdm that notes what it is told."""
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    FakeBar.made = []
    return python_package.stand_ins({"IPython": types.SimpleNamespace(get_ipython=lambda: shell), "tqdm": types.ModuleType("tqdm"),
                                     "tqdm.auto": types.SimpleNamespace(tqdm=FakeBar)})


def test_bars_in_a_notebook():
    """tqdm.auto's bars, and one that goes back where the upload begins again."""
    folder = folder_with_files("notebook")
    with notebook(), listening(Daemon(seconds=0, cuts=1)) as address, lorad.connect(address, retry_seconds=20) as client:
        assert client.datasets.add(folder / "rows.jsonl", "rows").size_bytes == SIZE
        client.adapters.add("mine", folder / "adapter")
        client.job("job-aaaaaaaa").adapter(folder / "fetched")
    rows, mine, model, config = FakeBar.made
    assert [bar.said["desc"] for bar in FakeBar.made] == ["uploading rows", "importing mine", "downloading adapter_model.safetensors",
                                                          "downloading adapter_config.json"]
    assert [bar.said["total"] for bar in FakeBar.made] == [SIZE, SIZE + 2, SIZE, 2]
    assert all(bar.closed and bar.n == bar.said["total"] for bar in FakeBar.made), [bar.n for bar in FakeBar.made]
    assert any(after < before for before, after in zip(rows.places, rows.places[1:])), "it was not told that the upload began again"
    for bar in (mine, model, config):
        assert bar.places == sorted(bar.places)
    assert all((bar.said["unit"], bar.said["unit_divisor"], bar.said["delay"]) == ("B", 1024, transfers.QUIET_SECONDS) for bar in FakeBar.made)


def test_a_log_has_a_line_now_and_then():
    out = io.StringIO()
    with clock_of(transfers) as clock:
        line = transfers.Line("uploading rows", 1000 << 20, out)
        for second, moved in ((5, 100), (10, 200), (15, 300), (20, 1000)):
            clock[0] = 100.0 + second
            line.at(moved << 20)
        line.close()
    assert out.getvalue() == ("uploading rows  20%  200.0 MiB of 1000.0 MiB  20.0 MiB/s  40s left\n"
                              "uploading rows  100%  1000.0 MiB of 1000.0 MiB  50.0 MiB/s  0s left\n"), out.getvalue()
    assert [transfers.duration_text(seconds) for seconds in (0.4, 59, 65, 3660)] == ["0s", "59s", "1m 05s", "1h 01m"]
    assert [transfers.bytes_text(count) for count in (0, 1023, 1536, 5 << 40)] == ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"]


if __name__ == "__main__":
    main([test_bars_of_tqdm_in_a_terminal, test_lines_in_a_terminal_without_tqdm, test_a_job_in_a_terminal_without_tqdm,
          test_what_changes_is_drawn_at_once, test_what_callbacks_print_is_not_behind_what_is_drawn, test_a_terminal_of_no_width_has_lines,
          test_a_job_by_tqdm_says_why_it_is_not_saved, test_nothing_is_shown_where_it_is_not_wanted,
          test_a_download_that_has_no_room, test_folders_that_cannot_be_made_or_read, test_bars_in_a_notebook, test_a_log_has_a_line_now_and_then])
