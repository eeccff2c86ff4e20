"""What the Python package says of arguments that are not right, before it asks a daemon anything.

usage: python_arguments_test.py [TEST...]
"""

import dataclasses
import os
import pathlib
import subprocess
import time

import python_package
from house import BINARIES, main
from python_daemon import SUCCEEDED, Code, Refusal, change, daemon_and_client, job_at, piece

import lorad
from google.rpc import error_details_pb2
from lorad.v1 import checkpoints_pb2, datasets_pb2


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


def test_the_daemon_names_the_arguments_of_an_ask():
    fields = {"max_tokens": "max_tokens", "stop": "stop", "base_model": "source", "job": "source", "messages_json": "prompt"}
    refusal = Refusal(Code.INVALID_ARGUMENT, "INVALID_FIELDS", error_details_pb2.BadRequest(field_violations=[
        {"field": f"asks[{i}].{field}", "description": "is not right"} for field in fields for i in range(2)]))
    with daemon_and_client() as (daemon, client):
        daemon.answers = {"Generate": [[refusal]]}
        error = python_package.error_of(lorad.InvalidError, client.generate, "job-aaaaaaaa", "hi")
        assert [str(violation) for violation in error.violations] == [f"{name}: is not right" for name in dict.fromkeys(fields.values())], error


def test_counts_of_a_config_that_are_none():
    config = dataclasses.make_dataclass("SFTConfig", [(name, object, None) for name in lorad.sft.COUNTS])
    with daemon_and_client() as (daemon, client):
        for name in lorad.sft.COUNTS:
            for wrong in ("x", float("inf"), float("nan"), [1]):
                error = python_package.error_of(lorad.InvalidError, client.train, "m", "sums", args=config(**{name: wrong}))
                assert f"SFTConfig.{name}: must be a number, got {wrong!r}" in str(error), error
        assert not daemon.asked, daemon.asked


def test_addresses():
    """Refused at once, in the words of `lora --server`, whose verdict is the same but where gRPC would ask another address."""
    words = "must be HOST:PORT, like 127.0.0.1:7070, with a port from 1 to 65535, got"
    for wrong in ("127.0.0.1:99999", "127.0.0.1:65536", "127.0.0.1:0", "127.0.0.1:-1", "127.0.0.1:x", "127.0.0.1:", "127.0.0.1", ":7070", "",
                  "[::1]", "http://127.0.0.1:1"):
        began = time.monotonic()
        error = python_package.error_of(lorad.InvalidError, lorad.connect, wrong)
        assert f"server: {words} {wrong!r}" in str(error) and time.monotonic() - began < 1, error
        told = subprocess.run([BINARIES / "client/lora", "--server", wrong, "ls"], capture_output=True, text=True)
        assert told.returncode == 2 and f"{words} '{wrong}'" in told.stderr, told
    for wrong in ("::1", "[]:1", "[::1:1", "::1]:1", "a:b:1", "dns:a:1", "a b:1", "127.0.0.1:1\n", "127.0.0.1:\u0667", "127.0.0.1: 1",
                  "\0:1", "\ud800:1", 5, b"127.0.0.1:1"):
        assert f"server: {words} {wrong!r}" in str(python_package.error_of(lorad.InvalidError, lorad.connect, wrong)), wrong
    assert "stands in brackets, [fe80::1]:70" in str(python_package.error_of(lorad.InvalidError, lorad.connect, "fe80::1:70"))
    before = os.environ.get("LORAD_SERVER")
    try:
        os.environ["LORAD_SERVER"] = "127.0.0.1:99999"
        assert f"LORAD_SERVER: {words}" in str(python_package.error_of(lorad.InvalidError, lorad.connect))
    finally:
        os.environ.pop("LORAD_SERVER")
        os.environ |= {"LORAD_SERVER": before} if before else {}
    with daemon_and_client() as (_, client):
        host, port = client.connection.server.split(":")
        for right in (f"{host}:{port}", f"{host}:0{port}", f"localhost:{port}"):
            lorad.connect(right).close()
    for right in ("[::1]:1", "[fe80::1%lo]:1"):
        python_package.error_of(lorad.UnavailableError, lorad.connect, right, retry_seconds=0)


def test_times_that_are_none():
    """Nothing is asked; a time that gRPC does not hold is without an end."""
    with daemon_and_client() as (daemon, client):
        job = lorad.Job(client.connection, job_at(0))
        for call, arguments in ((client.generate, ("m", "hi")), (client.evaluate, ("m", "sums", "(.)")), (job.wait, ()),
                                (lambda **said: next(job.watch(**said)), ())):
            for wrong in ("x", True, [1]):
                error = python_package.error_of(TypeError, call, *arguments, timeout=wrong)
                assert str(error) == f"timeout must be a number of seconds, not {type(wrong).__name__}", error
            assert "timeout: must be" in str(python_package.error_of(lorad.InvalidError, call, *arguments, timeout=float("nan")))
        assert "on_text must be a function" in str(python_package.error_of(TypeError, client.generate, "m", "hi", on_text=5))
        assert not daemon.asked, daemon.asked
        python_package.error_of(TimeoutError, job.wait, progress=False, timeout=-1)
        for seconds in (float("inf"), 1e300, 10**400):
            daemon.answers = {"WatchJobs": [[change(1, job_at(9, SUCCEEDED))]], "Generate": [[piece(text="a", finish_reason="EOS")]]}
            job.wait(progress=False, timeout=seconds)
            client.generate("m", "hi", timeout=seconds)
        lorad.connect(client.connection.server, retry_seconds=float("inf")).close()
        for wrong, kind in (("x", TypeError), (float("nan"), lorad.InvalidError)):
            error = python_package.error_of(kind, lorad.connect, client.connection.server, retry_seconds=wrong)
            assert "retry_seconds" in str(error), error


if __name__ == "__main__":
    main([value for name, value in list(globals().items()) if name.startswith("test_")])
