"""A daemon of a test's own, which answers the Python package as it is told to."""

import contextlib
import threading
from concurrent import futures

import python_package

python_package.load()

import grpc  # noqa: E402
import lorad  # noqa: E402
from google.protobuf import any_pb2  # noqa: E402
from google.rpc import code_pb2, error_details_pb2, status_pb2  # noqa: E402
from lorad.v1 import (adapters_pb2, adapters_pb2_grpc, checkpoints_pb2_grpc, cluster_pb2, cluster_pb2_grpc,  # noqa: E402
                      datasets_pb2_grpc, jobs_pb2, jobs_pb2_grpc)

Code = grpc.StatusCode
RUNNING, SUCCEEDED = jobs_pb2.Job.RUNNING, jobs_pb2.Job.SUCCEEDED


class Refusal(Exception):
    """What a call is answered with: a code, a reason and details of google.rpc."""

    def __init__(self, code, reason="", *details):
        self.code, self.reason, self.details = code, reason, details


class Daemon(adapters_pb2_grpc.AdaptersServicer, cluster_pb2_grpc.ClusterServicer, jobs_pb2_grpc.JobsServicer,
             datasets_pb2_grpc.DatasetsServicer, checkpoints_pb2_grpc.CheckpointsServicer):
    """`answers`: of each method, what its calls are answered with, one after another; `asked`: what they were asked."""

    def __init__(self):
        self.answers, self.asked = {}, {}

    def _refuse(self, refusal, context):
        if refusal.reason:
            status = status_pb2.Status(code=code_pb2.Code.Value(refusal.code.name), message="it is so")
            for detail in (error_details_pb2.ErrorInfo(reason=refusal.reason, domain="lorad", metadata={"what": "this"}),
                           *refusal.details):
                packed = any_pb2.Any()
                packed.Pack(detail)
                status.details.append(packed)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(refusal.code, "it is so")

    def _answer(self, method, request, context):
        self.asked.setdefault(method, []).append(request)
        answer = self.answers[method].pop(0)
        if isinstance(answer, Refusal):
            self._refuse(answer, context)
        return answer

    def GetCluster(self, request, context):
        return cluster_pb2.ClusterStatus()

    def CreateJob(self, request, context):
        return self._answer("CreateJob", request, context)

    def EstimateJob(self, request, context):
        return self._answer("EstimateJob", request, context)

    def DeleteJob(self, request, context):
        return self._answer("DeleteJob", request, context)

    def GetMetrics(self, request, context):
        return self._answer("GetMetrics", request, context)

    def ListCheckpoints(self, request, context):
        return self._answer("ListCheckpoints", request, context)

    def GetDataset(self, request, context):
        return self._answer("GetDataset", request, context)

    def CreateDataset(self, requests, context):
        return self._answer("CreateDataset", list(requests), context)

    def Generate(self, request, context):
        yield from self._stream("Generate", request, context)

    def WatchJobs(self, request, context):
        yield from self._stream("WatchJobs", request, context)

    def _stream(self, method, request, context):
        """An event: it stays open until the client ends it."""
        for item in self._answer(method, request, context):
            if isinstance(item, threading.Event):
                context.add_callback(item.set)
                item.wait(60)
                return
            if isinstance(item, Refusal):
                self._refuse(item, context)
            yield item


@contextlib.contextmanager
def daemon_and_client(retry_seconds=20.0):
    daemon = Daemon()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    adapters_pb2_grpc.add_AdaptersServicer_to_server(daemon, server)
    cluster_pb2_grpc.add_ClusterServicer_to_server(daemon, server)
    jobs_pb2_grpc.add_JobsServicer_to_server(daemon, server)
    checkpoints_pb2_grpc.add_CheckpointsServicer_to_server(daemon, server)
    datasets_pb2_grpc.add_DatasetsServicer_to_server(daemon, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with lorad.connect(f"127.0.0.1:{port}", retry_seconds=retry_seconds) as client:
            yield daemon, client
    finally:
        server.stop(0).wait()


def job_at(step, state=RUNNING):
    return jobs_pb2.Job(name="job-1", state=state, step=step, total_steps=9)


def piece(index=0, **fields):
    return adapters_pb2.GenerateResponse(index=index, **fields)


def change(revision, job, store="store-1"):
    return jobs_pb2.WatchJobsResponse(revision=revision, job=job, store=store)
