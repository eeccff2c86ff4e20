"""A job: follow it, wait for it, see its metrics, take its adapter."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lorad.arguments import check_whole, folder_of, of_call, put, seconds_of, shown
from lorad.callbacks import Callback, wrong_callback
from lorad.calls import ADAPTER_FILES, Connection, make_folder, sha256_of
from lorad.errors import TEMPORARY, UNREADABLE, AlreadyExistsError, JobFailedError, LoradError, Violation, file_errors, invalid
from lorad.progress import Progress, choose
from lorad.rows import Origin
from lorad.tables import Table
from lorad.v1 import checkpoints_pb2, jobs_pb2

ENDED = frozenset({jobs_pb2.Job.SUCCEEDED, jobs_pb2.Job.FAILED, jobs_pb2.Job.CANCELLED})
STEPS = [field.name for field in jobs_pb2.StepMetrics.DESCRIPTOR.fields]
EVALUATIONS = [field.name for field in jobs_pb2.EvaluationMetrics.DESCRIPTOR.fields]
PAGE_STEPS = 10_000


@dataclasses.dataclass
class _Told:
    """Up to where a callback has heard, so that a wait that was interrupted goes on behind it."""

    callback: Callback
    step: int = 0
    evaluation: int = -1


class Job:
    """A job of a daemon. `info` is the job as it was last seen (lorad.v1's Job), `refresh` sees again.

    Threads: one at a time."""

    def __init__(self, connection: Connection, info: jobs_pb2.Job, rows: Mapping[str, Origin] | None = None) -> None:
        self._connection = connection
        self.info = info
        self._rows = rows or {}  # where they came from, by the job's field
        self._told: list[_Told] = []

    def __repr__(self) -> str:
        return f"<lorad.Job {self.name} {self.state} step {self.info.step}/{self.info.total_steps}>"

    @property
    def name(self) -> str:
        """Its id."""
        return self.info.name

    @property
    def state(self) -> str:
        """Its state when it was last seen: "QUEUED", "RUNNING", "SUCCEEDED", ..."""
        return jobs_pb2.Job.State.Name(self.info.state)

    @property
    def done(self) -> bool:
        """Whether it had ended when it was last seen."""
        return self.info.state in ENDED

    def refresh(self) -> Job:
        """Sees how it stands now."""
        return self._ask(self._connection.jobs.GetJob, jobs_pb2.GetJobRequest(name=self.name))

    def watch(self, timeout: float | None = None) -> Iterator[jobs_pb2.Job]:
        """The job as it stands, then after every change, to its end. Broken connections and a daemon that is started
        again are gone over. TimeoutError after `timeout` seconds."""
        for answer in self._connection.watch([self.name], seconds_of("timeout", timeout)):
            if answer.deleted:
                raise LoradError(f"{self.name} was deleted", code="NOT_FOUND", reason="JOB_NOT_FOUND")
            if not answer.HasField("job"):
                continue
            self.info = answer.job
            yield answer.job
            if self.done:
                return

    def wait(self, *, progress: bool | None = None, callbacks: Sequence[Callback] = (),
             timeout: float | None = None) -> Job:
        """Waits until it has ended, and answers with itself. It goes on whatever happens to who waits: after Ctrl-C,
        wait again.

        progress   None: a bar where somebody looks on and tqdm is installed, else a line on stderr; False: nothing
        callbacks  each is told of every step and evaluation since the job began, once and in order
        timeout    seconds; then TimeoutError

        JobFailedError where it failed or was cancelled."""
        if not isinstance(callbacks, (list, tuple)):
            raise wrong_callback("callbacks", "a list of lorad.Callback", callbacks)
        for i, callback in enumerate(callbacks):
            if not isinstance(callback, Callback):
                raise wrong_callback(f"callbacks[{i}]", "a lorad.Callback", callback)
        timeout = seconds_of("timeout", timeout)
        for callback in callbacks:
            callback.on_begin(self.info)
        shown = choose(progress)
        try:
            for info in self.watch(timeout):
                for callback in callbacks:
                    self._tell(callback, shown)
                shown.show(info)
        finally:
            shown.close()
            for callback in callbacks:
                callback.on_end(self.info)
        if self.info.state != jobs_pb2.Job.SUCCEEDED:
            raise self._failure()
        return self

    def _tell(self, callback: Callback, shown: Progress) -> None:
        """What the callback has not heard; it may print, so nothing is drawn meanwhile."""
        told = next((one for one in self._told if one.callback is callback), None)
        if told is None:
            told = _Told(callback)
            self._told.append(told)
        for row in self._series(jobs_pb2.GetMetricsRequest.TRAINING, told.step):
            told.step = row["step"]
            shown.clear()
            callback.on_step(self.info, row)
        for row in self._series(jobs_pb2.GetMetricsRequest.EVALUATION, told.evaluation):
            told.evaluation = row["step"]
            shown.clear()
            callback.on_evaluation(self.info, row)

    def _failure(self) -> JobFailedError:
        error = self.info.error
        if self.info.state == jobs_pb2.Job.CANCELLED:
            return JobFailedError(f"{self.name} was cancelled", code="CANCELLED", reason="CANCELLED")
        category = {"category": jobs_pb2.JobError.Category.Name(error.category)}
        if error.reason == "INVALID_ROWS" and error.field in self._rows:
            message, violation = self._rows[error.field].blame(error.reason, error.message, error.line)
            return JobFailedError(f"{self.name} has failed: {message}", code="FAILED", reason=error.reason,
                                  violations=[violation], metadata=category)
        where = error.field or (f"line {error.line}" if error.line else "")
        what = f"{self.name} has failed" if where else f"{self.name} has failed: {error.message}"
        return JobFailedError(what, code="FAILED", reason=error.reason,
                              violations=[Violation(where, error.message)] if where else [],
                              metadata=category)

    def _series(self, series: jobs_pb2.GetMetricsRequest.Series, after: int) -> Iterator[dict[str, Any]]:
        training = series == jobs_pb2.GetMetricsRequest.TRAINING
        columns = STEPS if training else EVALUATIONS
        while True:
            request = jobs_pb2.GetMetricsRequest(job=self.name, series=series, after_step=after, page_size=PAGE_STEPS)
            answer = self._connection.call(self._connection.jobs.GetMetrics, request)
            for row in answer.steps if training else answer.evaluations:
                after = row.step
                yield {name: getattr(row, name) for name in columns}
            if not answer.more:
                return

    def metrics(self) -> Table:
        """A row for each optimizer step: step, loss, grad_norm (before clipping), learning_rate, trained_tokens,
        tokens, step_time_ms."""
        return Table(STEPS, self._series(jobs_pb2.GetMetricsRequest.TRAINING, 0))

    def evaluations(self) -> Table:
        """A row for each evaluation: step (0: before training), validation_loss, trained_tokens."""
        return Table(EVALUATIONS, self._series(jobs_pb2.GetMetricsRequest.EVALUATION, -1))

    def plot(self, ax: Any = None) -> Any:
        """Draws its losses over its steps, on `ax` or a figure of their own; answers with the axes. Needs matplotlib."""
        steps, evaluations = self.metrics(), self.evaluations()
        if ax is None:
            try:
                import matplotlib.pyplot
            except ImportError as error:
                raise ImportError("plot needs matplotlib: pip install matplotlib") from error
            ax = matplotlib.pyplot.subplots()[1]
        ax.plot(steps.column("step"), steps.column("loss"), label="training")
        if evaluations:
            ax.plot(evaluations.column("step"), evaluations.column("validation_loss"), marker="o", label="validation")
        ax.set_xlabel("step")
        ax.set_ylabel("loss")
        ax.set_title(self.info.display_name or self.name)
        ax.legend()
        return ax

    def checkpoints(self) -> list[checkpoints_pb2.Checkpoint]:
        """What it has saved, oldest first."""
        request = checkpoints_pb2.ListCheckpointsRequest(job=self.name)
        return [*self._connection.pages(self._connection.checkpoints.ListCheckpoints, request, "checkpoints")]

    def adapter(self, path: str | os.PathLike[str], step: int = 0, best: bool = False,
                replace: bool = False) -> pathlib.Path:
        """Fetches its adapter as a directory that PEFT loads (adapter_model.safetensors, adapter_config.json), and
        answers with its path. `step`: of a checkpoint; 0: the newest, or with `best` the one of the lowest validation
        loss. What is there already stays; files of these names that are something else's are AlreadyExistsError
        (DIRECTORY_EXISTS), or with `replace` give way. FileError where it cannot be written."""
        folder = folder_of("path", path)
        check_whole("step", step)
        if best:
            step = self._best_step(step)
        request = checkpoints_pb2.GetCheckpointRequest(job=self.name)
        put(request, "step", step)
        checkpoint = self._connection.call(self._connection.checkpoints.GetCheckpoint, request)
        files = {file.name: file for file in checkpoint.files}
        make_folder(folder)
        there: dict[str, str] = {}
        for name in filter(lambda name: os.path.lexists(folder / name), ADAPTER_FILES):
            with file_errors(folder / name, UNREADABLE):
                there[name] = sha256_of(folder / name)
        others = [name for name, sha256 in there.items() if sha256 != files[name].sha256]
        if others and not replace:
            raise AlreadyExistsError(f"{str(folder)!r} has another {' and another '.join(others)} than step {checkpoint.step} of "
                                     f"{self.name}: name another folder, or say replace=True", code="ALREADY_EXISTS",
                                     reason="DIRECTORY_EXISTS")
        for name in ADAPTER_FILES:
            if name not in there or name in others:
                self._connection.download(self.name, checkpoint.step, files[name], folder)
        return folder

    def _best_step(self, step: int) -> int:
        if step:
            raise of_call("step", f"names a checkpoint, got {shown(step)}, and so does best=True: leave one out")
        found = next((checkpoint.step for checkpoint in self.checkpoints() if checkpoint.best), None)
        if found is None:
            raise invalid([Violation("best", f"no checkpoint of {self.name} was evaluated: leave best out for the newest, and "
                                             "give the next job validation_data and eval_every_steps")], "of the call", "NO_BEST")
        return found

    def peft(self, model: Any, step: int = 0, **keywords: Any) -> Any:
        """`model` (of transformers) with this job's adapter on it: peft.PeftModel.from_pretrained(model, ..., **keywords).
        Needs peft."""
        try:
            from peft import PeftModel
        except ImportError as error:
            raise ImportError("Job.peft needs peft: pip install peft") from error
        with file_errors("a temporary folder", remedy=TEMPORARY):
            temporary = tempfile.TemporaryDirectory(prefix="lorad-adapter-")
        with temporary as folder:
            return PeftModel.from_pretrained(model, str(self.adapter(folder, step)), **keywords)

    def events(self) -> list[jobs_pb2.Event]:
        """What happened to it, oldest first."""
        request = jobs_pb2.ListEventsRequest(job=self.name)
        return [*self._connection.pages(self._connection.jobs.ListEvents, request, "events")]

    def estimate(self) -> jobs_pb2.JobEstimate:
        """What it takes in memory, and when it starts and ends; of a live job."""
        estimate: jobs_pb2.JobEstimate = self._connection.call(
            self._connection.jobs.EstimateJob, jobs_pb2.EstimateJobRequest(name=self.name), seconds=None)
        return estimate

    def cancel(self) -> Job:
        """Ends it; its last step is saved where that takes no more than ten seconds, and what it has saved stays. May be
        repeated."""
        return self._ask(self._connection.jobs.CancelJob, jobs_pb2.CancelJobRequest(name=self.name))

    def finish(self) -> Job:
        """Ends it with what it has: its last step is saved, and it SUCCEEDED. May be repeated. LoradError where no
        step of it is trained (reason NOTHING_TRAINED), or it is cancelled or has ended (JOB_CANCELLING, JOB_ENDED)."""
        return self._ask(self._connection.jobs.FinishJob, jobs_pb2.FinishJobRequest(name=self.name))

    def pause(self) -> Job:
        """Saves its last step and lets its place go. May be repeated."""
        return self._ask(self._connection.jobs.PauseJob, jobs_pb2.PauseJobRequest(name=self.name))

    def resume(self) -> Job:
        """Goes on after a pause, with the same bits. May be repeated."""
        return self._ask(self._connection.jobs.ResumeJob, jobs_pb2.ResumeJobRequest(name=self.name))

    def delete(self) -> None:
        """Deletes it with its events, metrics and checkpoints, once it has ended."""
        self._connection.delete(self._connection.jobs.DeleteJob, jobs_pb2.DeleteJobRequest(name=self.name))

    def _ask(self, method: Any, request: Any) -> Job:
        self.info = self._connection.call(method, request)
        return self
