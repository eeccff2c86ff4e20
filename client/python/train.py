"""Trains a LoRA adapter by a lorad daemon: rows in, a PEFT adapter directory out.

usage: train.py [--server HOST:PORT] --model NAME [--steps N] ROWS.jsonl OUTPUT_DIR
"""

import argparse
import hashlib
import pathlib
import sys
import uuid

import grpc
from google.rpc import error_details_pb2, status_pb2
from lorad.v1 import checkpoints_pb2, checkpoints_pb2_grpc, datasets_pb2, datasets_pb2_grpc, jobs_pb2, jobs_pb2_grpc

CHUNK_BYTES = 256 * 1024
DONE = {jobs_pb2.Job.SUCCEEDED, jobs_pb2.Job.FAILED, jobs_pb2.Job.CANCELLED}


def create_dataset(channel, name, path):
    """Streams the file; the daemon stores it once it is whole and every row is well formed."""
    def requests():
        yield datasets_pb2.CreateDatasetRequest(config={"name": name, "size_bytes": path.stat().st_size})
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield datasets_pb2.CreateDatasetRequest(chunk=chunk)
    return datasets_pb2_grpc.DatasetsStub(channel).CreateDataset(requests())


def create_job(jobs, model, dataset, steps):
    job = jobs_pb2.Job(
        base_model=model,
        training_dataset=dataset,
        adapter={"rank": 8, "alpha": 16, "target_modules": ["q_proj", "v_proj"]},
        training={"max_steps": steps, "batch_size": 2, "max_length": 512, "learning_rate": 2e-4},
    )
    # Sent again with the same id after a lost connection, it answers with the job made first.
    return jobs.CreateJob(jobs_pb2.CreateJobRequest(job=job, request_id=uuid.uuid4().hex))


def watch(jobs, name):
    """Follows the job to its end."""
    for change in jobs.WatchJobs(jobs_pb2.WatchJobsRequest(names=[name])):
        job = change.job
        print(f"{job.name}  {jobs_pb2.Job.State.Name(job.state)}  step {job.step}/{job.total_steps}"
              + (f"  loss {job.loss:.4f}" if job.HasField("loss") else ""), flush=True)
        if job.state in DONE:
            return job
    raise SystemExit("the daemon ended the watch")


def download(channel, name, directory):
    """Fetches what PEFT reads of the newest checkpoint."""
    checkpoints = checkpoints_pb2_grpc.CheckpointsStub(channel)
    checkpoint = checkpoints.GetCheckpoint(checkpoints_pb2.GetCheckpointRequest(job=name))
    directory.mkdir(parents=True)
    files = [file for file in checkpoint.files if file.name.startswith("adapter_")]
    for file in files:
        request = checkpoints_pb2.DownloadCheckpointRequest(job=name, step=checkpoint.step, file=file.name)
        content = b"".join(part.chunk for part in checkpoints.DownloadCheckpoint(request))
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise SystemExit(f"{file.name}: damaged on the way")
        (directory / file.name).write_bytes(content)
    print(f"{directory}: {', '.join(sorted(file.name for file in files))}")


def reason(error):
    """The machine-readable reason of an error (google.rpc.ErrorInfo), or its code."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return info.reason
    return error.code().name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="127.0.0.1:7070")
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("rows", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    options = parser.parse_args()
    with grpc.insecure_channel(options.server) as channel:
        jobs = jobs_pb2_grpc.JobsStub(channel)
        try:
            dataset = create_dataset(channel, f"rows-{uuid.uuid4().hex[:8]}", options.rows)
            job = watch(jobs, create_job(jobs, options.model, dataset.name, options.steps).name)
            if job.state != jobs_pb2.Job.SUCCEEDED:
                raise SystemExit(f"{job.name} did not succeed: {job.error.reason}: {job.error.message}")
            download(channel, job.name, options.output)
        except grpc.RpcError as error:
            sys.exit(f"error: {reason(error)}: {error.details()}")


if __name__ == "__main__":
    main()
