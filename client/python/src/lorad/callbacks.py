"""Who hears of a job's steps while `Job.wait` waits: your own Callback, Weights & Biases, TensorBoard.

Each step is told once and in order, however often the connection breaks. `job` is the API's message:
`client.job(job.name)` is the one that can be cancelled.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from lorad.v1 import jobs_pb2


class Callback:
    """Override what you want to hear."""

    def on_begin(self, job: jobs_pb2.Job) -> None:
        """Waiting begins; the job as it stands."""

    def on_step(self, job: jobs_pb2.Job, metrics: dict[str, Any]) -> None:
        """One optimizer step: a row of `Job.metrics`."""

    def on_evaluation(self, job: jobs_pb2.Job, metrics: dict[str, Any]) -> None:
        """One evaluation: a row of `Job.evaluations`."""

    def on_end(self, job: jobs_pb2.Job) -> None:
        """Waiting ends: the job has ended, in whatever state, or the wait was broken off."""


def wrong_callback(argument: str, wanted: str, value: Any) -> TypeError:
    """The error of what is none."""
    return TypeError(f"{argument} must be {wanted}, got {value!r}: derive a class from lorad.Callback and write its on_step "
                     "(job, metrics), and pass [an object of it]")


STEP_NAMES = {"loss": "train/loss", "grad_norm": "train/grad_norm", "learning_rate": "train/learning_rate",
              "tokens": "train/tokens", "step_time_ms": "train/step_time_ms"}
EVALUATION_NAMES = {"validation_loss": "eval/loss"}


def _named(metrics: dict[str, Any], names: dict[str, str]) -> dict[str, float]:
    return {theirs: float(metrics[ours]) for ours, theirs in names.items()}


def configuration(job: jobs_pb2.Job) -> dict[str, Any]:
    """What the client said of the job, as plain values."""
    said = {"base_model", "training_dataset", "validation_dataset", "adapter", "training", "labels"}
    whole: dict[str, Any] = json_format.MessageToDict(job, preserving_proto_field_name=True)
    return {name: value for name, value in whole.items() if name in said}


class WandbCallback(Callback):
    """Writes to a Weights & Biases run: `run`, or one that `wandb.init(**init)` makes and this ends."""

    def __init__(self, run: Any = None, **init: Any) -> None:
        self.run = run
        self._init = init
        self._own = run is None

    def on_begin(self, job: jobs_pb2.Job) -> None:
        """Makes the run where none was given."""
        if self._own:
            try:
                import wandb
            except ImportError as error:
                raise ImportError("WandbCallback needs wandb: pip install wandb") from error
            self.run = wandb.init(**{"name": job.display_name or job.name, "config": configuration(job), **self._init})
        # Validation comes beside steps, perhaps after later ones: W&B's own step only counts up.
        self.run.define_metric("*", step_metric="train/step")

    def on_step(self, job: jobs_pb2.Job, metrics: dict[str, Any]) -> None:
        """Logs the step."""
        self.run.log({"train/step": metrics["step"], **_named(metrics, STEP_NAMES)})

    def on_evaluation(self, job: jobs_pb2.Job, metrics: dict[str, Any]) -> None:
        """Logs the validation loss."""
        self.run.log({"train/step": metrics["step"], **_named(metrics, EVALUATION_NAMES)})

    def on_end(self, job: jobs_pb2.Job) -> None:
        """Ends a run that it made."""
        if self._own:
            self.run.finish(exit_code=0 if job.state == jobs_pb2.Job.SUCCEEDED else 1)


class TensorBoardCallback(Callback):
    """Writes to TensorBoard's files in `log_dir`, by torch.utils.tensorboard or tensorboardX, or by `writer`."""

    def __init__(self, log_dir: str | None = None, writer: Any = None) -> None:
        self.writer = writer
        self._log_dir = log_dir
        self._own = writer is None

    def on_begin(self, job: jobs_pb2.Job) -> None:
        """Makes the writer where none was given."""
        if not self._own:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            try:
                from tensorboardX import SummaryWriter
            except ImportError as error:
                raise ImportError("TensorBoardCallback needs torch and tensorboard, or tensorboardX: "
                                  "pip install tensorboardX") from error
        self.writer = SummaryWriter(self._log_dir or f"runs/{job.display_name or job.name}")

    def on_step(self, job: jobs_pb2.Job, metrics: dict[str, Any]) -> None:
        """Writes the step's numbers."""
        for name, value in _named(metrics, STEP_NAMES).items():
            self.writer.add_scalar(name, value, metrics["step"])

    def on_evaluation(self, job: jobs_pb2.Job, metrics: dict[str, Any]) -> None:
        """Writes the validation loss."""
        for name, value in _named(metrics, EVALUATION_NAMES).items():
            self.writer.add_scalar(name, value, metrics["step"])

    def on_end(self, job: jobs_pb2.Job) -> None:
        """Closes a writer that it made; flushes another."""
        if self._own:
            self.writer.close()
        else:
            self.writer.flush()
