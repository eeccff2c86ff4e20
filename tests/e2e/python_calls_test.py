"""The Python package against a daemon of the test's own, which answers as it is told to: what is tried again, and how.

usage: python_calls_test.py [TEST...]
"""

import contextlib
import dataclasses
import hashlib
import pathlib
import time
import warnings
from concurrent import futures

import python_package
from house import main, running_seconds

python_package.load()

import grpc  # noqa: E402
import lorad  # noqa: E402
from google.protobuf import any_pb2, duration_pb2, empty_pb2  # noqa: E402
from google.rpc import code_pb2, error_details_pb2, status_pb2  # noqa: E402
from lorad.v1 import checkpoints_pb2, checkpoints_pb2_grpc  # noqa: E402
from lorad.v1 import adapters_pb2, adapters_pb2_grpc, cluster_pb2, cluster_pb2_grpc, datasets_pb2, datasets_pb2_grpc, jobs_pb2, jobs_pb2_grpc  # noqa: E402

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
        for item in self._answer("Generate", request, context):
            if isinstance(item, Refusal):
                self._refuse(item, context)
            yield item

    def WatchJobs(self, request, context):
        for item in self._answer("WatchJobs", request, context):
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


def piece(index=0, **fields):
    return adapters_pb2.GenerateResponse(index=index, **fields)


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


def test_an_argument_that_is_none_is_named():
    with daemon_and_client() as (daemon, client):
        for kind, said, arguments in (
                (TypeError, "prompt must be a text", ("m", None)), (TypeError, "prompt must be a text", ("m", 5)),
                (TypeError, "prompt must be a text", ("m", {"role": "user"})), (lorad.InvalidError, "prompt: is empty", ("m", [])),
                (TypeError, "prompt[0] must be a message or a token id", ("m", ["a", "b"])),
                (TypeError, "prompt[1] must be a token id", ("m", [1, "b"])), (TypeError, "prompt[1] must be a token id", ("m", [1, None])),
                (TypeError, "prompt[1] must be a message", ("m", [{"role": "user", "content": "a"}, None])),
                (lorad.InvalidError, "prompt: is no text: character 1 (U+D800)", ("m", "a\ud800")),
                (TypeError, "source must be a Job", (None, "a")), (TypeError, "source must be a Job", ([None], "a")),
                (lorad.InvalidError, "source: is empty", ([], "a")),
                (lorad.InvalidError, "ask 'job-aaaaaaaa/2'", ("job-aaaaaaaa/02", "a"))):
            error = python_package.error_of(kind, client.generate, *arguments)
            assert said in str(error) and isinstance(error, (TypeError, ValueError)), (arguments, error)
        for said, arguments in (("dataset must be", ("m", None, "(.)")), ("exact_match must be", ("m", "rows", None)),
                                ("source must be", (None, "rows", "(.)"))):
            assert said in str(python_package.error_of(TypeError, client.evaluate, *arguments)), arguments
        assert "dataset: is empty" in str(python_package.error_of(lorad.InvalidError, client.evaluate, "m", "", "(.)"))
        assert "limit must be" in str(python_package.error_of(TypeError, client.evaluate, "m", "rows", "(.)", limit="3"))
        assert "Generate" not in daemon.asked, daemon.asked


def test_names_that_are_none_are_named():
    """Nothing is asked for: a job without a display name is not the one whose name is empty."""
    with daemon_and_client() as (daemon, client):
        job = lorad.Job(client.connection, job_at(1))
        calls = [(client.job, "a job's id"), (client.models.get, "a model's name"), (client.models.remove, "a model's name"),
                 (client.datasets.get, "a dataset's name"), (client.datasets.remove, "a dataset's name"),
                 (client.adapters.get, "an adapter's name"), (client.adapters.remove, "an adapter's name"),
                 (lambda name: client.models.add(name, "m"), "a model's name"), (lambda name: client.adapters.add(name, "a"), "an adapter's name"),
                 (lambda name: client.datasets.add([{}], name), "a dataset's name")]
        for call, what in calls:
            empty = python_package.error_of(lorad.InvalidError, call, "")
            assert empty.reason == "NO_NAME" and f"name: is empty: give {what}" in str(empty), empty
            for wrong in (5, b"m", *([None] if call is not calls[-1][0] else [])):
                assert f"name must be {what}" in str(python_package.error_of(TypeError, call, wrong)), (what, wrong)
        assert "filter must be a text" in str(python_package.error_of(TypeError, client.jobs, 5))
        assert "path: is empty" in str(python_package.error_of(lorad.InvalidError, job.adapter, ""))
        for wrong, said in (((None,), "path must be a folder's path, not NoneType"), (("out", "2"), "step must be a whole number, not str")):
            assert said == str(python_package.error_of(TypeError, job.adapter, *wrong))
        for argument, value, what in (("max_tokens", "x", "a whole number"), ("adapter", 5, "a text"), ("stop", 5, "a list of texts"),
                                      ("temperature", "x", "a number")):
            error = python_package.error_of(TypeError, client.generate, "m", "hi", **{argument: value})
            assert str(error) == f"{argument} must be {what}, not {type(value).__name__}", error
        assert not daemon.asked, daemon.asked


def test_numbers_out_of_range_are_named():
    """Of what the API's fields hold: what is within is the daemon's to refuse. None of them is sent."""
    huge, ranges = 10**5000, {bits: f"must be from 0 to {2**bits - 1}, got " for bits in (31, 63, 64)}
    with daemon_and_client() as (daemon, client):
        job = lorad.Job(client.connection, job_at(1))
        calls = [(client.generate, ("m", [5, number]), {}, "prompt[1]", 31) for number in (2**31, 2**40, -2**40, huge)]
        calls += [(call, source, {argument: number}, argument, bits)
                  for call, source in ((client.generate, ("m", "hi")), (client.evaluate, ("m", "sums", "(.)")))
                  for argument, number, bits in (("max_tokens", 2**31, 31), ("max_tokens", huge, 31), ("seed", -1, 64), ("seed", 2**64, 64))]
        calls += [(client.train, ("m", "sums"), {argument: number}, argument, bits)
                  for argument, number, bits in (("r", 2**31, 31), ("max_steps", huge, 31), ("epochs", 1e20, 31), ("seed", -1, 64),
                                                 ("save_steps", -2**40, 31), ("data_seed", 2**64, 64), ("batch_size", 2**31, 31))]
        calls += [(client.train, ("m", "sums"), {"rank_pattern": {"q": 2**31}}, "rank_pattern['q']", 31),
                  (client.train, ("m", "sums"), {"layers_to_transform": [1, huge]}, "layers_to_transform[1]", 31),
                  (client.models.add, ("m", "m"), {"stages": 2**31}, "stages", 31), (job.adapter, ("out", 2**63), {}, "step", 63),
                  (job.adapter, ("out", huge), {}, "step", 63)]
        for call, arguments, keywords, name, bits in calls:
            error = python_package.error_of(lorad.InvalidError, call, *arguments, **keywords)
            (violation,) = error.violations
            assert violation.field == name and violation.description.startswith(ranges[bits]), (name, error)
        for call, arguments, keywords, said in (
                (client.generate, ("m", "hi"), {"temperature": 10**400}, "temperature: must be at most 1.7e308, got 1000"),
                (client.train, ("m", "sums"), {"alpha_pattern": {"q": huge}}, "alpha_pattern['q']: must be at most 1.7e308, got one of type int"),
                (client.train, ("m", "sums"), {"priority": 2**31}, "priority: must be from -2147483648 to 2147483647, got 2147483648"),
                (client.evaluate, ("m", "sums", "(.)"), {"limit": -huge}, "limit: must be at least 1, got one of type int"),
                (client.generate, ("job-aaaaaaaa/" + "9" * 5000, "hi"), {}, "names a step of more than 18 digits, which no job has")):
            assert said in str(python_package.error_of(lorad.InvalidError, call, *arguments, **keywords)), said
        assert not daemon.asked, daemon.asked


def test_what_protobuf_json_and_expressions_do_not_take():
    ring = []
    ring.append(ring)
    with daemon_and_client() as (daemon, client):
        for argument, value, said in (("stop", ["", 1], "stop[1] must be a text, not int"), ("stop", {"a": 1}, "stop must be a list of texts, not dict"),
                                      ("temperature", True, "temperature must be a number, not bool"), ("max_tokens", 1.0, "max_tokens must be a whole")):
            assert said in str(python_package.error_of(TypeError, client.generate, "m", "hi", **{argument: value})), argument
        half = "is no text: character 0 (U+D800) is half of one"
        for said, call, arguments, keywords in (
                (f"source: {half}", client.generate, ("\ud800", "hi"), {}), (f"stop[0]: {half}", client.generate, ("m", "hi"), {"stop": "\ud800"}),
                (f"base_model: {half}", client.train, ("\ud800", "sums"), {}), (f"path: {half}", client.models.add, ("m", "\ud800"), {}),
                (f"target_modules[1]: {half}", client.train, ("m", "sums"), {"target_modules": ["q", "\ud800"]}),
                ("target_modules[1]: must be a text, got 1", client.train, ("m", "sums"), {"target_modules": ["q", 1]}),
                ("exclude_modules", client.train, ("m", "sums"), {"exclude_modules": {"q", 1}}),
                ("schedule: must be one of CONSTANT", client.train, ("m", "sums"), {"schedule": 1.5}),
                ("peft_config: is no LoraConfig", client.train, ("m", "sums"), {"peft_config": {"r": ring}}),
                ("prompt: a message holds what JSON does not: Circular", client.generate, ("m", [{"role": "user", "content": ring}]), {}),
                ("exact_match: is no regular expression", client.evaluate, ("m", "sums", "(a){" + "9" * 30 + "}"), {}),
                ("exact_match: is no regular expression", client.evaluate, ("m", "sums", "(" * 5000), {})):
            daemon.answers = {"GetDataset": [datasets_pb2.Dataset(name="sums")]}
            assert said in str(python_package.error_of(lorad.InvalidError, call, *arguments, **keywords)), said
        assert "Generate" not in daemon.asked and "CreateJob" not in daemon.asked, daemon.asked
        # Texts that come one by one are there for the second ask as well.
        daemon.answers = {"GetDataset": [datasets_pb2.Dataset(name="sums", rows=1)], "Generate": [[piece(text="a", finish_reason="EOS")]]}
        client.evaluate("m", "sums", "(.)", stop=iter(["."]), progress=False)
        assert daemon.asked["Generate"][0].asks[0].stop == ["."], daemon.asked


def test_arguments_of_a_job_that_are_none_are_named():
    with daemon_and_client() as (daemon, client):
        assert "base_model: must be the name" in str(python_package.error_of(lorad.InvalidError, client.train, [{"text": "a"}], "m"))
        assert "data: has no rows" in str(python_package.error_of(lorad.InvalidError, client.train, "m", []))
        wrong = (([], ": has no rows"), ({"test": [{"text": "a"}]}, ": is a mapping"), (3, ": must be rows"), ([1], "[0]: must be a mapping"),
                 (pathlib.Path("gone.jsonl"), ": there is no file"))
        daemon.answers = {"GetDataset": [datasets_pb2.Dataset(name="sums")] * len(wrong)}
        for data, said in wrong:
            error = python_package.error_of(lorad.InvalidError, client.train, "m", "sums", validation_data=data)
            assert f"\n  validation_data{said}" in str(error), error
        job = lorad.Job(client.connection, job_at(1))
        for said, callbacks in (("callbacks[0] must be a lorad.Callback, got <built-in function print>", [print]),
                                ("callbacks[1] must be a lorad.Callback, got <class", [lorad.Callback(), lorad.Callback]),
                                ("callbacks must be a list of lorad.Callback, got <", lorad.Callback())):
            assert said in str(python_package.error_of(TypeError, job.wait, callbacks=callbacks)), callbacks
        daemon.answers = {"ListCheckpoints": [checkpoints_pb2.ListCheckpointsResponse(checkpoints=[{"step": 2}])]}
        error = python_package.error_of(lorad.InvalidError, job.adapter, "out", best=True)
        assert error.reason == "NO_BEST" and "no checkpoint of job-1 was evaluated: leave best out" in str(error), error
        assert "step: names a checkpoint" in str(python_package.error_of(lorad.InvalidError, job.adapter, "out", 2, best=True))


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


def change(revision, job, store="store-1"):
    return jobs_pb2.WatchJobsResponse(revision=revision, job=job, store=store)


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
