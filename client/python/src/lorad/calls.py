"""The way to the daemon: one channel, calls that are tried again, uploads, downloads and watches that go on where they
broke off. All of gRPC is in this file.

Threads: a Connection may be used from any.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import grpc

from lorad import transfers
from lorad.errors import UNREADABLE, AlreadyExistsError, LoradError, NotFoundError, file_errors, from_rpc
from lorad.v1 import (adapters_pb2, adapters_pb2_grpc, checkpoints_pb2, checkpoints_pb2_grpc, cluster_pb2_grpc, datasets_pb2,
                      datasets_pb2_grpc, jobs_pb2, jobs_pb2_grpc, models_pb2_grpc)

CALL_SECONDS = 60.0
CHUNK_BYTES = 256 * 1024
# Of a PEFT adapter. Fetched in this order: where the config is, all is there.
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")
PAUSE_SECONDS = 0.2  # before the second attempt; doubled for each one after it
PAUSE_SECONDS_MAX = 5.0
OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),  # a page of 1000 jobs with long labels
    ("grpc.enable_http_proxy", 0),
    # A daemon that is there but answers nothing is noticed in a call that would wait for ever.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


def new_request_id() -> str:
    """Names one thing that is to be created, so that creating it may be repeated."""
    return uuid.uuid4().hex


def sha256_of(path: pathlib.Path) -> str:
    """Of a file's bytes; "" where it is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(path: pathlib.Path) -> None:
    """With those above it; one that is there stays."""
    with file_errors(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise AlreadyExistsError(f"{str(path)!r} is there already, and no directory: name another folder", code="ALREADY_EXISTS",
                                     reason="DIRECTORY_EXISTS") from None


def _closed_error() -> LoradError:
    return LoradError("the client is closed: lorad.connect() makes another", code="FAILED_PRECONDITION", reason="CLIENT_CLOSED")


class _Attempts:
    """Whether, and after what pause, something is tried again."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._pause = PAUSE_SECONDS

    def pause_or_raise(self, error: LoradError) -> None:
        """Sleeps before the next attempt, the last of which comes as the time is over; raises `error` where it does not
        pass, or the time was over."""
        passes = error.code == "UNAVAILABLE" or error.retry_after is not None
        left = self._end - time.monotonic()
        if not passes or left <= 0:
            raise error
        time.sleep(min(max(self._pause, error.retry_after or 0.0), left))
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)


class Connection:
    """A channel to `server` (HOST:PORT). `retry_seconds`: for so long a daemon that is away is waited for. `progress`:
    whether uploads and downloads are shown (`transfers.choose`)."""

    def __init__(self, server: str, retry_seconds: float, progress: bool | None = None) -> None:
        self.server = server
        self.retry_seconds = retry_seconds
        self.progress = progress
        self._closed = False
        self.channel: Any = grpc.insecure_channel(server, options=OPTIONS)
        stub: Any = adapters_pb2_grpc
        self.adapters: Any = stub.AdaptersStub(self.channel)
        stub = checkpoints_pb2_grpc
        self.checkpoints: Any = stub.CheckpointsStub(self.channel)
        stub = cluster_pb2_grpc
        self.cluster: Any = stub.ClusterStub(self.channel)
        stub = datasets_pb2_grpc
        self.datasets: Any = stub.DatasetsStub(self.channel)
        stub = jobs_pb2_grpc
        self.jobs: Any = stub.JobsStub(self.channel)
        stub = models_pb2_grpc
        self.models: Any = stub.ModelsStub(self.channel)

    def close(self) -> None:
        """Ends all calls."""
        self._closed = True
        self.channel.close()

    def begin(self, method: Callable[..., Any], request: Any, seconds: float | None = None) -> Any:
        """One attempt of a call: its answer, or the stream of its answers. All calls begin here. LoradError where the
        client is closed."""
        if not self._closed:
            try:
                return method(request, timeout=seconds)
            except ValueError:  # of gRPC, where it is closed meanwhile
                if not self._closed:
                    raise
        raise _closed_error()

    def error_of(self, error: Any) -> LoradError:
        """What a grpc.RpcError of a call means."""
        return _closed_error() if self._closed else from_rpc(error, self.server)

    def call(self, method: Callable[..., Any], request: Any, *, seconds: float | None = CALL_SECONDS,
             retry_seconds: float | None = None) -> Any:
        """One call, tried again while the daemon is away: what creates needs a request id."""
        attempts = _Attempts(self.retry_seconds if retry_seconds is None else retry_seconds)
        while True:
            try:
                return self.begin(method, request, seconds)
            except grpc.RpcError as error:
                found = self.error_of(error)
            attempts.pause_or_raise(found)

    def delete(self, method: Callable[..., Any], request: Any) -> None:
        """The same for what deletes: what is gone at a later attempt was deleted by the first."""
        attempts = _Attempts(self.retry_seconds)
        repeated = False
        while True:
            try:
                self.begin(method, request, CALL_SECONDS)
                return
            except grpc.RpcError as error:
                found = self.error_of(error)
            if repeated and isinstance(found, NotFoundError):
                return
            attempts.pause_or_raise(found)
            repeated = True

    def pages(self, method: Callable[..., Any], request: Any, field: str) -> Iterator[Any]:
        """What a list has, page by page."""
        request.page_size = 1000
        while True:
            page = self.call(method, request)
            yield from getattr(page, field)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def upload(self, name: str, file: IO[bytes], size: int) -> datasets_pb2.Dataset:
        """Stores `file` as the dataset `name`."""
        config = datasets_pb2.CreateDatasetRequest.Config(name=name, request_id=new_request_id(), size_bytes=size)
        shown: transfers.Transfer

        def requests() -> Iterator[datasets_pb2.CreateDatasetRequest]:
            file.seek(0)
            yield datasets_pb2.CreateDatasetRequest(config=config)
            while chunk := file.read(CHUNK_BYTES):
                yield datasets_pb2.CreateDatasetRequest(chunk=chunk)
                shown.at(file.tell())

        def create(_: None, timeout: float | None) -> Any:
            return self.datasets.CreateDataset(requests(), timeout=timeout)

        with contextlib.closing(transfers.choose(self.progress, f"uploading {name}", size)) as shown:
            dataset: datasets_pb2.Dataset = self.call(create, None, seconds=None)
        return dataset

    def import_adapter(self, name: str, folder: pathlib.Path) -> adapters_pb2.Adapter:
        """Stores the two files of a PEFT adapter's directory as the adapter `name`."""
        config = adapters_pb2.ImportAdapterRequest.Config(name=name, request_id=new_request_id())
        files: dict[str, IO[bytes]] = {}
        shown: transfers.Transfer

        def requests() -> Iterator[adapters_pb2.ImportAdapterRequest]:
            moved = 0
            yield adapters_pb2.ImportAdapterRequest(config=config)
            for file_name in ADAPTER_FILES[::-1]:
                yield adapters_pb2.ImportAdapterRequest(file=file_name)
                files[file_name].seek(0)
                while chunk := files[file_name].read(CHUNK_BYTES):
                    yield adapters_pb2.ImportAdapterRequest(chunk=chunk)
                    moved += len(chunk)
                    shown.at(moved)

        def create(_: None, timeout: float | None) -> Any:
            return self.adapters.ImportAdapter(requests(), timeout=timeout)

        with contextlib.ExitStack() as ends:
            for file_name in ADAPTER_FILES:
                with file_errors(folder / file_name, UNREADABLE):
                    files[file_name] = ends.enter_context((folder / file_name).open("rb"))
            size = sum(os.fstat(file.fileno()).st_size for file in files.values())
            shown = ends.enter_context(contextlib.closing(transfers.choose(self.progress, f"importing {name}", size)))
            adapter: adapters_pb2.Adapter = self.call(create, None, seconds=None)
        return adapter

    def download(self, job: str, step: int, file: checkpoints_pb2.CheckpointFile, folder: pathlib.Path) -> None:
        """Fetches one file of a checkpoint into `folder`, where it appears once it is whole and its hash is right."""
        part = folder / f".{file.name}.{new_request_id()[:8]}.part"
        try:
            with file_errors(folder / file.name):
                self._download(job, step, file, part)
                os.replace(part, folder / file.name)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()

    def _download(self, job: str, step: int, file: checkpoints_pb2.CheckpointFile, part: pathlib.Path) -> None:
        attempts = _Attempts(self.retry_seconds)
        digest, offset = hashlib.sha256(), 0
        with part.open("wb") as out, contextlib.closing(
                transfers.choose(self.progress, f"downloading {file.name}", file.size_bytes)) as shown:
            while True:
                request = checkpoints_pb2.DownloadCheckpointRequest(job=job, step=step, file=file.name, offset=offset)
                try:
                    for answer in self.begin(self.checkpoints.DownloadCheckpoint, request):
                        out.write(answer.chunk)
                        digest.update(answer.chunk)
                        offset += len(answer.chunk)
                        shown.at(offset)
                    break
                except grpc.RpcError as error:
                    found = self.error_of(error)
                attempts.pause_or_raise(found)
        if digest.hexdigest() != file.sha256:
            raise LoradError(f"{file.name} of {job} was damaged on the way", code="DATA_LOSS", reason="DAMAGED")

    def watch(self, names: Sequence[str], timeout: float | None = None) -> Iterator[jobs_pb2.WatchJobsResponse]:
        """What happens to these jobs: the present state, then every change in order. It goes on by itself where the
        connection broke, without leaving out or repeating a change while the daemon keeps them (an hour at least).
        TimeoutError after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        attempts: _Attempts | None = None
        revision, store = 0, ""
        while True:
            request = jobs_pb2.WatchJobsRequest(names=names, resume_from_revision=revision, resume_from_store=store,
                                                bookmarks=True)
            left = None if end is None else max(0.0, end - time.monotonic())
            stream = self.begin(self.jobs.WatchJobs, request, left)
            try:
                for answer in stream:
                    attempts = None
                    revision, store = max(revision, answer.revision), answer.store
                    yield answer
                found = LoradError("the daemon ended the watch", code="UNAVAILABLE", reason="STREAM_ENDED")
            except grpc.RpcError as error:
                found = self.error_of(error)
            finally:
                stream.cancel()
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"{', '.join(names)}: not done after {timeout:g} s")
            if found.code == "OUT_OF_RANGE" and revision > 0:  # no longer kept, or of another store
                revision, store = 0, ""
                continue
            if found.code == "CANCELLED":  # so a daemon that stops ends its watches
                found.code = "UNAVAILABLE"
            attempts = attempts or _Attempts(self.retry_seconds)
            attempts.pause_or_raise(found)
