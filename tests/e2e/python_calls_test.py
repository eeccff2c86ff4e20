"""The Python package against a daemon of the test's own, which answers as it is told to: what is tried again, and how.

usage: python_calls_test.py [TEST...]
"""

import dataclasses
import hashlib
import os
import pathlib
import tempfile
import threading
import time
import warnings

import python_package
from house import main, running_seconds
from python_daemon import SUCCEEDED, Code, Refusal, change, daemon_and_client, job_at, piece

import lorad
from google.protobuf import duration_pb2, empty_pb2
from google.rpc import error_details_pb2
from lorad.v1 import checkpoints_pb2, datasets_pb2, jobs_pb2


def test_a_create_is_repeated_with_its_id():
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1))
    with daemon_and_client() as (daemon, client):
        daemon.answers = {"GetDataset": [datasets_pb2.Dataset(name="sums")] * 2,
                          "CreateJob": [Refusal(Code.UNAVAILABLE), Refusal(Code.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS", retry), job_at(0),
                                        job_at(0)]}
        began = time.monotonic()
        client.train("m", "sums")
        assert time.monotonic() - began > 1, "it did not wait as long as it was told to"
        client.train("m", "sums")
        ids = [request.request_id for request in daemon.asked["CreateJob"]]
        assert ids[0] and ids[0] == ids[1] == ids[2] != ids[3], ids


def test_an_answer_comes_in_pieces_and_is_not_asked_for_twice():
    with daemon_and_client() as (daemon, client):
        daemon.answers = {"Generate": [
            [piece(waiting="no worker is connected"), piece(1, text="x"), piece(text="a", token_ids=[1], log_probabilities=[-1.0], step=5),
             piece(text="b", token_ids=[2], log_probabilities=[-2.0], finish_reason="EOS", prompt_tokens=3, completion_tokens=2),
             piece(1, finish_reason="LENGTH", completion_tokens=1)],
            [piece(text="a"), Refusal(Code.UNAVAILABLE, "SHUTTING_DOWN")],
            [piece(text="a")],
            [Refusal(Code.NOT_FOUND, "ASKED_IS_GONE")]]}
        told = []
        one, other = client.generate(["job-aaaaaaaa/5", "m"], "hi", system="be brief", stop=["."], on_text=lambda *heard: told.append(heard))
        assert told == [(1, "x"), (0, "a"), (0, "b")], told
        assert (one.text, one.token_ids, one.log_probabilities, one.step) == ("ab", [1, 2], [-1.0, -2.0], 5), one
        assert (one.finish_reason, one.prompt_tokens, one.completion_tokens, str(other)) == ("EOS", 3, 2, "x"), one
        (asked,) = daemon.asked["Generate"]
        assert (asked.asks[0].job, asked.asks[0].step, asked.asks[1].base_model, asked.asks[1].HasField("step")) == ("job-aaaaaaaa", 5, "m", False)
        assert "be brief" in asked.asks[0].messages_json and asked.asks[0].stop == ["."] and asked.asks[0].max_tokens == 128, asked
        assert python_package.error_of(lorad.UnavailableError, client.generate, "m", "hi").reason == "SHUTTING_DOWN"
        assert python_package.error_of(lorad.LoradError, client.generate, "m", "hi").reason == "GENERATION_CUT_SHORT"
        assert python_package.error_of(lorad.NotFoundError, client.generate, "m", "hi").reason == "ASKED_IS_GONE"
        assert len(daemon.asked["Generate"]) == 4


def test_what_a_config_says_to_no_effect():
    config = dataclasses.make_dataclass("SFTConfig", [("use_cpu", bool, False)])
    said = f"SFTConfig.use_cpu: is True, which changes nothing: {lorad.needless.FIXED['use_cpu'][1]}"
    with daemon_and_client() as (daemon, client):
        daemon.answers = {"GetDataset": [datasets_pb2.Dataset(name="sums")] * 4, "EstimateJob": [jobs_pb2.JobEstimate()],
                          "CreateJob": [job_at(0), jobs_pb2.Job(warnings=["of the daemon's"]), job_at(0)]}
        for call in (client.train, client.estimate):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                call("m", "sums", args=config(True))
            assert [str(warning.message) for warning in told] == [said] and told[0].filename == __file__, told
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert client.check("m", "sums", args=config(True)) == [said, "of the daemon's"]
            client.train("m", "sums", args=config())


def test_the_daemon_counts_the_steps_of_an_epoch():
    with daemon_and_client() as (daemon, client):
        daemon.answers = {"GetDataset": [datasets_pb2.Dataset(name="sums")] * 5,
                          "EstimateJob": [jobs_pb2.JobEstimate(total_steps=7), jobs_pb2.JobEstimate(total_steps=7), jobs_pb2.JobEstimate(seconds=3),
                                          Refusal(Code.INVALID_ARGUMENT, "INVALID_FIELDS", error_details_pb2.BadRequest(field_violations=[
                                              {"field": "training.eval_every_steps", "description": "needs a validation_dataset"}]))],
                          "CreateJob": [job_at(0)]}
        said = {"eval_strategy": "epoch", "epochs": 3, "max_steps": 9}
        client.train("m", "sums", validation_data="sums", **said)
        (counted,), (created,) = daemon.asked["EstimateJob"], daemon.asked["CreateJob"]
        of_one, training = counted.job.training, created.job.training
        assert (of_one.epochs, of_one.max_steps, of_one.eval_every_steps, of_one.HasField("checkpoint_every_steps")) == (1, 0, 1, False), of_one
        assert counted.job.validation_dataset == "sums" and (training.epochs, training.max_steps, training.eval_every_steps) == (3, 9, 7), training
        assert client.estimate("m", "sums", validation_data="sums", save_steps="epoch").seconds == 3
        assert daemon.asked["EstimateJob"][-1].job.training.checkpoint_every_steps == 7
        assert "eval_strategy: needs a validation_dataset" in str(python_package.error_of(lorad.InvalidError, client.train, "m", "sums", **said))


def test_what_does_not_pass_is_not_repeated():
    quota = error_details_pb2.QuotaFailure(violations=[{"subject": "team=math", "description": "two jobs at most"}])
    stands = error_details_pb2.PreconditionFailure(violations=[{"subject": "job-1", "description": "is live"}])
    with daemon_and_client() as (daemon, client):
        daemon.answers = {"GetDataset": [datasets_pb2.Dataset(name="sums")], "CreateJob": [Refusal(Code.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", quota)]}
        error = python_package.error_of(lorad.LoradError, client.train, "m", "sums")
        assert (error.code, error.reason, error.metadata) == ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", {"what": "this"})
        assert str(error) == "QUOTA_EXCEEDED: it is so\n  team=math: two jobs at most", error
        job = lorad.Job(client.connection, job_at(1))
        daemon.answers = {"DeleteJob": [Refusal(Code.FAILED_PRECONDITION, "JOB_LIVE", stands)]}
        assert "job-1: is live" in str(python_package.error_of(lorad.LoradError, job.delete))
        assert len(daemon.asked["CreateJob"]) == len(daemon.asked["DeleteJob"]) == 1


def test_the_time_for_retries_ends():
    with daemon_and_client(retry_seconds=1.0) as (daemon, client):
        daemon.answers = {"GetDataset": [Refusal(Code.UNAVAILABLE, "SHUTTING_DOWN")] * 20}
        began = running_seconds()
        error = python_package.error_of(lorad.UnavailableError, client.datasets.get, "sums")
        assert error.reason == "SHUTTING_DOWN" and running_seconds() - began < 3
        assert 2 <= len(daemon.asked["GetDataset"]) <= 5, len(daemon.asked["GetDataset"])


def test_a_delete_whose_answer_was_lost():
    with daemon_and_client() as (daemon, client):
        job = lorad.Job(client.connection, job_at(9, SUCCEEDED))
        daemon.answers = {"DeleteJob": [Refusal(Code.UNAVAILABLE), Refusal(Code.NOT_FOUND, "JOB_NOT_FOUND")]}
        job.delete()
        daemon.answers = {"DeleteJob": [Refusal(Code.NOT_FOUND, "JOB_NOT_FOUND")]}
        python_package.error_of(lorad.NotFoundError, job.delete)
        daemon.answers = {"DeleteJob": [empty_pb2.Empty()]}
        job.delete()


def test_an_upload_is_sent_again_whole():
    rows = [{"text": "x" * 100_000}] * 10
    with daemon_and_client() as (daemon, client):
        missing = Refusal(Code.NOT_FOUND, "DATASET_NOT_FOUND")
        daemon.answers = {"GetDataset": [missing], "CreateDataset": [Refusal(Code.UNAVAILABLE), datasets_pb2.Dataset(name="mine")]}
        assert client.datasets.add(iter(rows)).name == "mine"
        first, second = daemon.asked["CreateDataset"]
        assert first == second and first[0].config.request_id, "the second upload is another"
        sent = b"".join(request.chunk for request in first[1:])
        assert len(sent) == first[0].config.size_bytes > 1_000_000 and max(len(r.chunk) for r in first) <= 1 << 20
        sha256 = hashlib.sha256(sent).hexdigest()
        assert first[0].config.name == f"rows-{sha256[:16]}"
        # Another client was quicker.
        daemon.answers = {"GetDataset": [missing, datasets_pb2.Dataset(name="theirs", sha256=sha256)],
                          "CreateDataset": [Refusal(Code.ALREADY_EXISTS, "DATASET_EXISTS")]}
        assert client.datasets.add(rows).name == "theirs"


def test_a_watch_goes_on_where_it_broke():
    bookmark = jobs_pb2.WatchJobsResponse(revision=7, store="store-1")
    with daemon_and_client() as (daemon, client):
        job = lorad.Job(client.connection, job_at(0))
        daemon.answers = {"WatchJobs": [
            [change(5, job_at(1)), change(6, job_at(2)), bookmark, Refusal(Code.UNAVAILABLE)],
            [Refusal(Code.UNAVAILABLE, "SHUTTING_DOWN")],
            [change(8, job_at(3)), Refusal(Code.CANCELLED)],
            [change(9, job_at(4))],  # and the stream ends
            [Refusal(Code.OUT_OF_RANGE, "OTHER_STORE")],
            [change(2, job_at(5), "store-2"), change(3, job_at(9, SUCCEEDED), "store-2")]]}
        assert [seen.step for seen in job.watch()] == [1, 2, 3, 4, 5, 9] and job.done
        resumed = [(request.resume_from_revision, request.resume_from_store) for request in daemon.asked["WatchJobs"]]
        assert resumed == [(0, ""), (7, "store-1"), (7, "store-1"), (8, "store-1"), (9, "store-1"), (0, "")], resumed
        assert all(list(request.names) == ["job-1"] and request.bookmarks for request in daemon.asked["WatchJobs"])


def test_each_callback_hears_all():
    """One that raises costs another nothing, one that comes late hears what was before it."""
    class Record(lorad.Callback):
        def __init__(self, raises_at=0):
            self.steps, self.raises_at = [], raises_at

        def on_step(self, job, metrics):
            self.steps.append(metrics["step"])
            if metrics["step"] == self.raises_at:
                raise ZeroDivisionError

    def series(first, last):
        return jobs_pb2.GetMetricsResponse(steps=[jobs_pb2.StepMetrics(step=step) for step in range(first, last + 1)])

    with daemon_and_client() as (daemon, client):
        job = lorad.Job(client.connection, job_at(0))
        bad, good, late = Record(raises_at=2), Record(), Record()
        nothing = jobs_pb2.GetMetricsResponse()
        daemon.answers = {"WatchJobs": [[change(1, job_at(3))], [change(2, job_at(3, SUCCEEDED))]],
                          "GetMetrics": [series(1, 3), series(3, 3), nothing, series(1, 3), nothing, series(1, 3), nothing]}
        python_package.error_of(ZeroDivisionError, job.wait, progress=False, callbacks=[bad, good])
        job.wait(progress=False, callbacks=[bad, good, late])
        assert bad.steps == good.steps == late.steps == [1, 2, 3], (bad.steps, good.steps, late.steps)
        asked = [request.after_step for request in daemon.asked["GetMetrics"]]
        assert asked == [0, 2, -1, 0, -1, 0, -1], asked


def test_attempts_last_as_long_as_is_said():
    with daemon_and_client(retry_seconds=2.0) as (daemon, client):
        daemon.answers = {"GetDataset": [Refusal(Code.UNAVAILABLE)] * 20}
        began, ran = time.monotonic(), running_seconds()
        python_package.error_of(lorad.UnavailableError, client.datasets.get, "rows")
        assert time.monotonic() - began >= 2.0 and running_seconds() - ran < 3.0


def test_a_client_that_is_closed():
    """All that it is asked then is refused, and what it was asked before ends."""
    def check(call, *arguments, **keywords):
        error = python_package.error_of(lorad.LoradError, call, *arguments, **keywords)
        assert error.reason == "CLIENT_CLOSED" and "the client is closed: lorad.connect() makes another" in str(error), error
        assert not isinstance(error, lorad.UnavailableError), error

    with daemon_and_client() as (daemon, client):
        job = lorad.Job(client.connection, job_at(0))
        daemon.answers = {"WatchJobs": [[change(1, job_at(1)), threading.Event()]], "Generate": [[piece(text="a"), threading.Event()]],
                          "GetDataset": [Refusal(Code.UNAVAILABLE)] * 9}
        seen, told, found = threading.Event(), threading.Event(), []
        calls = [(client.generate, ("m", "hi"), {"on_text": lambda *_: told.set()}), (client.datasets.get, ("sums",), {}),
                 (lambda: [seen.set() for _ in job.watch()], (), {})]
        threads = [threading.Thread(target=lambda call=call: found.append(check(call[0], *call[1], **call[2]))) for call in calls]
        for thread in threads:
            thread.start()
        assert seen.wait(20) and told.wait(20)
        client.close()
        for thread in threads:
            thread.join(20)
        assert found == [None] * 3, found
        client.close()
        for call, arguments in ((client.jobs, ()), (client.cluster, ()), (client.generate, ("m", "hi")), (client.evaluate, ("m", "sums", "(.)")),
                                (client.train, ("m", [{"text": "a"}])), (client.check, ("m", "sums")), (client.adapters.remove, ("a",)),
                                (client.models.list, ()), (job.refresh, ()), (job.delete, ()), (job.metrics, ()), (job.adapter, ("out",)),
                                (next, (job.watch(),))):
            check(call, *arguments)
        check(job.wait, progress=False)
        file = checkpoints_pb2.CheckpointFile(name="adapter_config.json", size_bytes=2)
        check(client.connection.download, "job-1", 1, file, pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))))


def test_a_watch_that_does_not_go_on():
    with daemon_and_client(retry_seconds=0.5) as (daemon, client):
        job = lorad.Job(client.connection, job_at(0))
        daemon.answers = {"WatchJobs": [[jobs_pb2.WatchJobsResponse(revision=3, job=job_at(1), deleted=True)],
                                        [Refusal(Code.NOT_FOUND, "JOB_NOT_FOUND")],
                                        *[[Refusal(Code.UNAVAILABLE)]] * 9]}
        assert "was deleted" in str(python_package.error_of(lorad.LoradError, job.wait, progress=False))
        assert python_package.error_of(lorad.NotFoundError, job.wait, progress=False).reason == "JOB_NOT_FOUND"
        python_package.error_of(lorad.UnavailableError, job.wait, progress=False)


if __name__ == "__main__":
    main([value for name, value in list(globals().items()) if name.startswith("test_")])
