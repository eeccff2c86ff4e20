"""A daemon: its models, datasets and jobs, and what makes a job."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lorad import answers, names, rows
from lorad.arguments import check_address, check_name, check_text, check_whole, folder_of, of_call, put, seconds_of, shown, wrong_type
from lorad.calls import ADAPTER_FILES, Connection, new_request_id
from lorad.errors import UNREADABLE, AlreadyExistsError, InvalidError, LoradError, NotFoundError, file_errors
from lorad.job import Job
from lorad.v1 import adapters_pb2, cluster_pb2, datasets_pb2, jobs_pb2, models_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lorad.names import JobFields

DEFAULT_SERVER = "127.0.0.1:7070"
CONNECT_SECONDS = 10.0
RETRY_SECONDS = 60.0
JOB_ID = re.compile(r"job-[a-z0-9]{8}")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def connect(server: str | None = None, *, retry_seconds: float = RETRY_SECONDS, progress: bool | None = None) -> Client:
    """A client of the daemon at `server` (HOST:PORT, [IPV6]:PORT; default: LORAD_SERVER, or 127.0.0.1:7070).

    UnavailableError where none answers within 10 s. Later on, calls and watches wait `retry_seconds` for a daemon that
    went away, and go on then.

    progress  of uploads and downloads that take over a second. None: a bar where somebody looks on and tqdm is
              installed, else lines on stderr; False: nothing"""
    address = os.environ.get("LORAD_SERVER") or DEFAULT_SERVER if server is None else server
    check_address("server" if server is not None else "LORAD_SERVER", address)
    seconds = seconds_of("retry_seconds", retry_seconds)
    connection = Connection(address, math.inf if seconds is None else seconds, progress)
    client = Client(connection)
    try:
        connection.call(connection.cluster.GetCluster, cluster_pb2.GetClusterRequest(), seconds=CONNECT_SECONDS,
                        retry_seconds=min(connection.retry_seconds, CONNECT_SECONDS))
    except BaseException:
        client.close()
        raise
    return client


class Models:
    """The base models of a daemon."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> list[models_pb2.Model]:
        """All of them."""
        return [*self._connection.pages(self._connection.models.ListModels, models_pb2.ListModelsRequest(), "models")]

    def get(self, name: str) -> models_pb2.Model:
        """One; NotFoundError where there is none."""
        check_name("name", name, "a model's name")
        model: models_pb2.Model = self._connection.call(self._connection.models.GetModel,
                                                        models_pb2.GetModelRequest(name=name))
        return model

    def add(self, name: str, path: str | os.PathLike[str], *, chat_template: str = "", stages: int = 0) -> models_pb2.Model:
        """Registers the Hugging Face directory `path`, which the daemon reads; it must be a path there. A model of this
        name and path that is there already is answered with, unless a template or stages are said."""
        check_name("name", name, "a model's name")
        check_text("chat_template", chat_template)
        if not isinstance(path, (str, os.PathLike)):
            raise wrong_type("path", "a folder's path", path)
        request = models_pb2.RegisterModelRequest(name=name, request_id=new_request_id(), chat_template=chat_template)
        put(request, "path", os.fspath(path))
        put(request, "stages", stages)
        try:
            model: models_pb2.Model = self._connection.call(self._connection.models.RegisterModel, request, seconds=None)
        except AlreadyExistsError:
            model = self.get(name)
            if model.path != os.path.normpath(request.path) or chat_template or stages:
                raise
        return model

    def remove(self, name: str) -> None:
        """Forgets it; its files stay."""
        check_name("name", name, "a model's name")
        self._connection.delete(self._connection.models.UnregisterModel, models_pb2.UnregisterModelRequest(name=name))


class Datasets:
    """The rows that a daemon has stored."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> list[datasets_pb2.Dataset]:
        """All of them."""
        request = datasets_pb2.ListDatasetsRequest()
        return [*self._connection.pages(self._connection.datasets.ListDatasets, request, "datasets")]

    def get(self, name: str) -> datasets_pb2.Dataset:
        """One; NotFoundError where there is none."""
        check_name("name", name, "a dataset's name")
        dataset: datasets_pb2.Dataset = self._connection.call(self._connection.datasets.GetDataset,
                                                              datasets_pb2.GetDatasetRequest(name=name))
        return dataset

    def add(self, data: Any, name: str | None = None, *, columns: rows.Columns | None = None) -> datasets_pb2.Dataset:
        """Stores rows: a list or another iterable of mappings, a file's path (JSON Lines, a JSON array, CSV or TSV,
        perhaps gzip), a datasets.Dataset, a DataFrame of pandas.

        name     default: one made of the rows' hash, so that the same rows are stored once
        columns  the name in the rows -> that in the data, e.g. {"prompt": "question", "completion": "answer"}

        The same rows under the same name are answered with as they are stored."""
        if name is not None:
            check_name("name", name, "a dataset's name")
        return self._add(data, name, columns, rows.Origin(data, columns, "data"))

    def _add(self, data: Any, name: str | None, columns: rows.Columns | None, origin: rows.Origin,
             made: set[str] | None = None) -> datasets_pb2.Dataset:
        """`add`, whose errors say where the rows came from. With `made`, what has to be stored has a name of this call's own,
        which is added to it: nobody else can come to use it."""
        spool = rows.Spool(data, columns, origin.argument)
        try:
            wanted = name or f"rows-{spool.sha256[:16]}"
            try:
                found = self.get(wanted)
            except NotFoundError:
                if made is not None:
                    wanted = f"check-{new_request_id()}"
                    made.add(wanted)
                try:
                    return self._connection.upload(wanted, spool.file, spool.size)
                except AlreadyExistsError:  # by another client, a moment ago
                    found = self.get(wanted)
                except InvalidError as error:
                    if error.reason != "DATASET_INVALID":
                        raise
                    message, violation = origin.blame(error.reason, error.message, 0)
                    raise InvalidError(message, code=error.code, reason=error.reason, violations=[violation]) from None
            if found.sha256 != spool.sha256:
                raise AlreadyExistsError(f"there is a dataset {wanted!r} of other rows", code="ALREADY_EXISTS",
                                         reason="DATASET_EXISTS")
            return found
        finally:
            spool.close()

    def remove(self, name: str) -> None:
        """Deletes it."""
        check_name("name", name, "a dataset's name")
        self._connection.delete(self._connection.datasets.DeleteDataset, datasets_pb2.DeleteDatasetRequest(name=name))


class Adapters:
    """PEFT adapters that were imported, to go on training from: `train(..., init_from=NAME)`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> list[adapters_pb2.Adapter]:
        """All of them."""
        request = adapters_pb2.ListAdaptersRequest()
        return [*self._connection.pages(self._connection.adapters.ListAdapters, request, "adapters")]

    def get(self, name: str) -> adapters_pb2.Adapter:
        """One; NotFoundError where there is none."""
        check_name("name", name, "an adapter's name")
        adapter: adapters_pb2.Adapter = self._connection.call(self._connection.adapters.GetAdapter,
                                                              adapters_pb2.GetAdapterRequest(name=name))
        return adapter

    def add(self, name: str, path: str | os.PathLike[str]) -> adapters_pb2.Adapter:
        """Imports the directory `path` of this machine, as PEFT's save_pretrained writes it."""
        check_name("name", name, "an adapter's name")
        folder = folder_of("path", path)
        with file_errors(folder, UNREADABLE):
            lacking = [file for file in ADAPTER_FILES if not (folder / file).is_file()]
        if lacking:
            raise of_call("path", f"{str(folder)!r} is no PEFT adapter: it has no {' and no '.join(lacking)}")
        return self._connection.import_adapter(name, folder)

    def remove(self, name: str) -> None:
        """Deletes it."""
        check_name("name", name, "an adapter's name")
        self._connection.delete(self._connection.adapters.DeleteAdapter, adapters_pb2.DeleteAdapterRequest(name=name))


class Client:
    """A daemon. Made by `connect`; ended by `close`, or with `with`. Threads: any may use it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.adapters = Adapters(connection)
        self.models = Models(connection)
        self.datasets = Datasets(connection)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<lorad.Client of {self.connection.server}>"

    def close(self) -> None:
        """Ends its calls, and those that others make meanwhile or later with LoradError (CLIENT_CLOSED); jobs go on."""
        self.connection.close()

    def cluster(self) -> cluster_pb2.ClusterStatus:
        """The daemon, its groups, and how many jobs are in which state."""
        status: cluster_pb2.ClusterStatus = self.connection.call(self.connection.cluster.GetCluster,
                                                                 cluster_pb2.GetClusterRequest())
        return status

    def jobs(self, filter: str = "") -> list[Job]:
        """All jobs, newest first; `filter` as in docs/api.md, e.g. 'state = RUNNING AND labels.team = math'."""
        check_text("filter", filter)
        request = jobs_pb2.ListJobsRequest(filter=filter)
        return [Job(self.connection, job) for job in self.connection.pages(self.connection.jobs.ListJobs, request, "jobs")]

    def job(self, name: str) -> Job:
        """The job of this id, or of this display name; NotFoundError where there is none, LoradError (AMBIGUOUS_NAME) where
        several have the name."""
        check_name("name", name, "a job's id or display name")
        if not JOB_ID.fullmatch(name):
            quoted = name.replace("\\", "\\\\").replace('"', '\\"')
            named = self.jobs(f'display_name = "{quoted}"')
            if len(named) > 1:
                ids = ", ".join(job.name for job in named)
                raise LoradError(f"{len(named)} jobs have the name {name!r}; say which by its id: {ids}", code="INVALID_ARGUMENT",
                                 reason="AMBIGUOUS_NAME")
            if named:
                return named[0]
        found = self.connection.call(self.connection.jobs.GetJob, jobs_pb2.GetJobRequest(name=name))
        return Job(self.connection, found)

    def train(self, base_model: str, data: Any, *, validation_data: Any = None, peft_config: Any = None, args: Any = None,
              columns: rows.Columns | None = None, **fields: Unpack[JobFields]) -> Job:
        """Creates a job, and answers once the daemon has stored it.

        base_model       a registered model's name
        data             rows as `Datasets.add` takes them, one of its datasets, or a stored dataset's name
        validation_data  likewise; its loss is measured at the start, every eval_every_steps, and at the end
        peft_config      a LoraConfig of PEFT's; what it does not say, and `fields` do not, has its default
        args             an SFTConfig of TRL's: its fields that mean something here, their defaults too; others that are
                         set are refused by name
        columns          as `Datasets.add` has it, for both
        fields           rank=16, learning_rate=2e-4, ...: by our names or those of PEFT and transformers (docs/api.md);
                         they go before peft_config and args

        InvalidError holds all that is wrong."""
        request = self._prepare(base_model, data, validation_data, peft_config, args, columns, fields)
        _warn(request)
        return Job(self.connection, self._create(request), request.rows)

    def check(self, base_model: str, data: Any, *, validation_data: Any = None, peft_config: Any = None, args: Any = None,
              columns: rows.Columns | None = None, **fields: Unpack[JobFields]) -> list[str]:
        """Checks a job and every row of its data without creating it; the arguments are those of `train`. Answers with
        warnings: what is allowed and likely not meant. InvalidError as there."""
        with self._for_a_while() as made:
            request = self._prepare(base_model, data, validation_data, peft_config, args, columns, fields, made)
            return [*request.warnings, *self._create(request, validate_only=True).warnings]

    def estimate(self, base_model: str, data: Any, *, validation_data: Any = None, peft_config: Any = None,
                 args: Any = None, columns: rows.Columns | None = None,
                 **fields: Unpack[JobFields]) -> jobs_pb2.JobEstimate:
        """What a job would cost in memory and time; the arguments are those of `train`."""
        with self._for_a_while() as made:
            request = self._prepare(base_model, data, validation_data, peft_config, args, columns, fields, made)
            _warn(request)
            return self._estimate(request, request.job)

    def generate(self, source: str | Job | Sequence[str | Job], prompt: answers.Prompt, *, adapter: str = "",
                 system: str = "", raw: bool = False, max_tokens: int = 128, temperature: float = 0.0, top_p: float = 0.0,
                 seed: int = 0, stop: str | Sequence[str] = (), timeout: float | None = 600.0,
                 on_text: Callable[[int, str], None] | None = None) -> Any:
        """Asks a job's adapter, or a base model: an `Answer`, whose text is `str(answer)`.

        source       a model's name, a Job, or a job's id or display name, also with "/STEP" for one of its checkpoints; a
                     list of these, all of one base model, is asked at once and answered with a list
        prompt       what the user says, rendered by the model's chat template behind `system`; a list of messages
                     ({"role", "content"}); a list of token ids; or with `raw` a text as it is
        adapter      an imported adapter, on the base model `source`
        temperature  0: always the most likely token; else `seed` decides, and the same again gives the same answer
        stop         texts before which the answer ends
        on_text      is called with an answer's index and each piece of its text as it comes

        LoradError where it cannot be asked, or the call breaks off; TimeoutError after `timeout` seconds. Nothing of a
        call is kept: ask again."""
        if prompt is None:
            answers.check_prompt(prompt)
        many = isinstance(source, (list, tuple))
        sources: list[Any] = [*source] if isinstance(source, (list, tuple)) else [source]
        if on_text is not None and not callable(on_text):
            raise wrong_type("on_text", "a function of an answer's index and a text", on_text)
        timeout = seconds_of("timeout", timeout)
        if not sources:
            raise of_call("source", "is empty: name a job or a model at least")
        how = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed, "stop": _list_of(stop)}

        def ask(sources: Sequence[Any]) -> list[answers.Answer]:
            asks = [answers.ask(one, prompt, adapter=adapter, system=system, raw=raw, how=how) for one in sources]
            return answers.generate(self.connection, asks, timeout, on_text)

        made = self._ask(ask, sources)
        return made if many else made[0]

    def evaluate(self, source: str | Job, dataset: str | datasets_pb2.Dataset, exact_match: str, *, adapter: str = "",
                 limit: int | None = None, max_tokens: int = 256, temperature: float = 0.0, top_p: float = 0.0,
                 seed: int = 0, stop: str | Sequence[str] = (), timeout: float | None = 600.0,
                 progress: bool = True) -> answers.Evaluation:
        """Asks a dataset's rows, each up to its last answer, and counts those that are answered right: where the first
        group of the expression `exact_match`, found in the answer, is that found in the row's own.

        limit     only the first rows
        timeout   seconds for 64 rows
        progress  lines on stderr

        `.exact_match` is the share, `.wrong` a table of the others. Rows that cannot be asked (too long, say) are left out
        and stand in `.not_asked`; LoradError where none can. The expression is searched for in a process of its own, for
        5 s at most: `.gave_up` has the rows where that was not enough."""
        how = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed, "stop": _list_of(stop)}
        if not isinstance(exact_match, str):
            raise wrong_type("exact_match", "a regular expression as a text", exact_match)
        name = dataset.name if isinstance(dataset, datasets_pb2.Dataset) else dataset
        check_name("dataset", name, "a dataset or its name")
        if limit is not None:
            check_whole("limit", limit)
        if limit is not None and limit < 1:
            raise of_call("limit", f"must be at least 1, got {shown(limit)}")
        timeout = seconds_of("timeout", timeout)
        answers.ask(source, None, adapter=adapter, system="", raw=False, how=how)  # before the dataset is asked for
        stored = self.datasets.get(name)
        told: Callable[[int, int, int], None] = answers.Lines(sys.stderr) if progress else lambda *_: None

        def ask(sources: Sequence[Any]) -> answers.Evaluation:
            request = answers.ask(sources[0], None, adapter=adapter, system="", raw=False, how=how)
            return answers.evaluate(self.connection, request, stored, exact_match, limit=limit, timeout=timeout,
                                    progress=told)

        evaluation: answers.Evaluation = self._ask(ask, [source])
        return evaluation

    def _ask(self, ask: Callable[[Sequence[Any]], Any], sources: Sequence[Any]) -> Any:
        """`ask(sources)`, with jobs in place of what names no model, but jobs by display name."""
        try:
            return ask(sources)
        except LoradError as error:
            several = len(sources) > 1 and error.reason == "INVALID_FIELDS"  # they are not of one base model
            if error.reason != "MODEL_NOT_FOUND" and not several:
                raise
            named = [self._by_display_name(source) for source in sources]
            if named == [*sources]:
                raise
        return ask(named)

    def _has_model(self, name: str) -> bool:
        try:
            self.models.get(name)
        except (InvalidError, NotFoundError):
            return False
        return True

    def _by_display_name(self, source: Any) -> Any:
        if not isinstance(source, str) or answers.JOB.fullmatch(source) or self._has_model(source):
            return source
        name, slash, step = source.rpartition("/")
        for display_name, of_it in ((source, ""), (name, slash + step)):
            if display_name and (not of_it or step.isdigit()):
                try:
                    return self.job(display_name).name + of_it
                except NotFoundError:
                    pass
        return source

    def _prepare(self, base_model: str, data: Any, validation_data: Any, peft_config: Any, args: Any,
                 columns: rows.Columns | None, fields: Any, made: set[str] | None = None) -> names.Request:
        request = names.build(base_model, fields, peft_config, args)  # before anything is uploaded
        request.train_on(self._take_rows(request, "training_dataset", data, columns, "data", made))
        if validation_data is not None:
            self._take_rows(request, "validation_dataset", validation_data, columns, "validation_data", made)
        request.origins |= {"training_dataset": "data", "validation_dataset": "validation_data"}
        if request.by_epoch:
            request.set_epoch(self._estimate(request, request.of_an_epoch()).total_steps)
        return request

    def _estimate(self, request: names.Request, job: jobs_pb2.Job) -> jobs_pb2.JobEstimate:
        try:
            estimate: jobs_pb2.JobEstimate = self.connection.call(self.connection.jobs.EstimateJob,
                                                                  jobs_pb2.EstimateJobRequest(job=job), seconds=None)
        except InvalidError as error:
            raise _renamed(error, request) from None
        return estimate

    def _take_rows(self, request: names.Request, field: str, data: Any, columns: rows.Columns | None, argument: str,
                   made: set[str] | None) -> int:
        """Sets the job's field to a stored dataset of these rows; its format."""
        stored = data.name if isinstance(data, datasets_pb2.Dataset) else data
        if isinstance(stored, str) and NAME.fullmatch(stored):
            setattr(request.job, field, stored)
            try:
                return self.datasets.get(stored).format
            except NotFoundError:
                return 0  # the daemon says so beside all else that is wrong
        origin = rows.Origin(data, columns, argument)
        dataset = self.datasets._add(data, None, columns, origin, made)
        setattr(request.job, field, dataset.name)
        request.rows[field] = origin
        return dataset.format

    @contextlib.contextmanager
    def _for_a_while(self) -> Iterator[set[str]]:
        """What is stored under the names that are added to the set goes again."""
        made: set[str] = set()
        try:
            yield made
        finally:
            for name in made:
                with contextlib.suppress(LoradError):  # it was refused, or the daemon is away
                    self.connection.call(self.connection.datasets.DeleteDataset, datasets_pb2.DeleteDatasetRequest(name=name),
                                         retry_seconds=0)

    def _create(self, request: names.Request, validate_only: bool = False) -> jobs_pb2.Job:
        create = jobs_pb2.CreateJobRequest(job=request.job, request_id=new_request_id(), validate_only=validate_only)
        try:
            job: jobs_pb2.Job = self.connection.call(self.connection.jobs.CreateJob, create, seconds=None)
        except InvalidError as error:
            raise _renamed(error, request) from None
        return job


def _list_of(stop: Any) -> Any:
    """The texts before which answers end; they may be asked for twice."""
    return [stop] if isinstance(stop, str) else [*stop] if isinstance(stop, Iterator) else stop


def _warn(request: names.Request) -> None:
    for warning in request.warnings:
        warnings.warn(warning, stacklevel=3)  # of whom called the caller's method


def _renamed(error: InvalidError, request: names.Request) -> InvalidError:
    """The daemon's error by the names that the caller used."""
    message, violations = error.message, request.in_their_words(error.violations)
    origin = request.rows.get(error.metadata.get("field", ""))
    if error.reason == "INVALID_ROWS" and origin:
        message, violation = origin.blame(error.reason, message, int(error.metadata["line"]))
        violations = [violation]
    return InvalidError(message, code=error.code, reason=error.reason, metadata=error.metadata, violations=violations,
                        retry_after=error.retry_after)
