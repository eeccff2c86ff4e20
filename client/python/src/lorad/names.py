"""The arguments of `Client.train` as a job: our names, those of PEFT, TRL and transformers, a LoraConfig and an
SFTConfig. Pure: knows no daemon.

The names of others are those of the table in client/inputs/job_names.cc, which `lora` reads job files by;
tests/e2e/python_names_test.py holds both equal. Those of needless.py need not be said.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

from lorad import needless, sft
from lorad.arguments import check_text, fault_in, put, shown
from lorad.errors import Violation, invalid
from lorad.rows import Origin
from lorad.v1 import datasets_pb2, jobs_pb2

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class JobFields(TypedDict, total=False):
        """What may be said of a job by name. docs/api.md ("A job's fields") says what each means and its default."""

        display_name: str
        priority: int
        labels: Mapping[str, str]
        # The adapter.
        rank: int
        alpha: float
        dropout: float
        target_modules: list[str] | set[str] | str
        use_rslora: bool
        init_from: str
        target_regex: str
        exclude_modules: list[str] | set[str]
        exclude_regex: str
        layers_to_transform: list[int]
        rank_pattern: Mapping[str, int]
        alpha_pattern: Mapping[str, float]
        # Training.
        epochs: int
        max_steps: int
        batch_size: int
        max_length: int
        overflow: str
        learning_rate: float
        schedule: str
        warmup_steps: int
        warmup_ratio: float
        weight_decay: float
        beta1: float
        beta2: float
        eps: float
        max_grad_norm: float
        shuffle: bool
        checkpoint_every_steps: int | str
        checkpoint_keep_last: int
        checkpoint_keep_best: int
        loraplus_lr_ratio: float
        eval_every_steps: int | str
        train_on: str
        # Both: of the initialization, of the order of rows and of dropout.
        seed: int
        # PEFT's, TRL's and transformers' names.
        run_name: str
        r: int
        lora_alpha: float
        lora_dropout: float
        num_train_epochs: float
        per_device_train_batch_size: int
        gradient_accumulation_steps: int
        max_seq_length: int
        lr_scheduler_type: str
        adam_beta1: float
        adam_beta2: float
        adam_epsilon: float
        save_steps: int | str
        save_total_limit: int
        eval_steps: int | str
        data_seed: int

Section = str
PER_DEVICE, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"

# Theirs -> the section and the field that is ours.
NAMES: dict[str, tuple[Section, str]] = {
    "run_name": ("", "display_name"),
    "r": ("adapter", "rank"),
    "lora_alpha": ("adapter", "alpha"),
    "lora_dropout": ("adapter", "dropout"),
    "num_train_epochs": ("training", "epochs"),
    PER_DEVICE: ("training", "batch_size"),
    ACCUMULATION: ("training", "batch_size"),
    "max_seq_length": ("training", "max_length"),
    "lr_scheduler_type": ("training", "schedule"),
    "adam_beta1": ("training", "beta1"),
    "adam_beta2": ("training", "beta2"),
    "adam_epsilon": ("training", "eps"),
    "save_steps": ("training", "checkpoint_every_steps"),
    "save_total_limit": ("training", "checkpoint_keep_last"),
    "eval_steps": ("training", "eval_every_steps"),
    "data_seed": ("training", "seed"),
}

# Not taken: what is likely meant by it.
LIKELY: dict[str, str] = {
    "lora_r": "rank",
    "lora_rank": "rank",
    "lr": "learning_rate",
    "lr_scheduler": "schedule",
    "n_epochs": "epochs",
    "micro_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "sequence_len": "max_length",
    "cutoff_len": "max_length",
}

_NOT_SAID = {"adapter": {"peft_config", "modules", "seed"}, "training": {"seed"}}
_MESSAGES: dict[Section, Any] = {"": jobs_pb2.Job, "adapter": jobs_pb2.AdapterConfig, "training": jobs_pb2.TrainingConfig}
# Ours -> its section.
FIELDS: dict[str, Section] = {
    **{name: "" for name in ("display_name", "priority", "labels")},
    **{field.name: section for section, left_out in _NOT_SAID.items()
       for field in _MESSAGES[section].DESCRIPTOR.fields if field.name not in left_out},
}
SEED = "seed"  # of both sections
# They may be "epoch": the steps of one.
MAY_BE_EPOCH = ("checkpoint_every_steps", "eval_every_steps")


@dataclasses.dataclass
class Request:
    """A job as it was asked for."""

    job: jobs_pb2.Job
    # Where it stands in `job` -> the argument that said it.
    origins: dict[str, str] = dataclasses.field(default_factory=dict)
    # What an SFTConfig says of the tokens that are trained on, which depends on the rows' format.
    sft_loss: sft.Loss | None = None
    # What an SFTConfig says to no effect.
    warnings: list[str] = dataclasses.field(default_factory=list)
    # "training_dataset", "validation_dataset" -> where its rows came from, unless they were stored before.
    rows: dict[str, Origin] = dataclasses.field(default_factory=dict)
    # Fields of the training that are the steps of an epoch, which the daemon counts.
    by_epoch: list[str] = dataclasses.field(default_factory=list)

    def of_an_epoch(self) -> jobs_pb2.Job:
        """The job with one epoch, whose steps are to be counted."""
        job = jobs_pb2.Job()
        job.CopyFrom(self.job)
        job.training.epochs, job.training.max_steps = 1, 0
        for field in self.by_epoch:
            setattr(job.training, field, 1)  # for what needs it
        return job

    def set_epoch(self, steps: int) -> None:
        """Settles what comes once an epoch."""
        for field in self.by_epoch:
            put(self.job.training, field, steps, self.origins[f"training.{field}"])

    def train_on(self, dataset_format: int) -> None:
        """Settles what is trained on, once the format of the rows is known."""
        if self.sft_loss is not None:
            conversation = dataset_format == datasets_pb2.Dataset.MESSAGES
            said = self.sft_loss.of_conversations if conversation else self.sft_loss.of_completions
            self.job.training.MergeFrom(jobs_pb2.TrainingConfig(train_on=said))

    def in_their_words(self, violations: list[Violation]) -> list[Violation]:
        """The daemon's violations by the names of the arguments."""
        return [Violation(self.origins.get(v.field, v.field), v.description) for v in violations]


def build(base_model: str, fields: Mapping[str, Any], peft_config: Any = None, args: Any = None) -> Request:
    """The job that these arguments mean, without its datasets. InvalidError has everything that is wrong.

    What `fields` says goes before `args` (an SFTConfig) and `peft_config` (a LoraConfig)."""
    return _Builder().build(base_model, fields, peft_config, args)


def plain(value: Any) -> Any:
    """A value of another library's as one of Python's own: enums, numpy's numbers, sets."""
    value = getattr(value, "value", value)
    if not isinstance(value, (str, bytes, list, Mapping)) and hasattr(value, "item"):
        with contextlib.suppress(ValueError, RuntimeError):  # it is of several numbers
            value = value.item()
    if not isinstance(value, (set, frozenset)):
        return value
    try:
        return sorted(value)
    except TypeError:
        return [*value]


def suggest(name: str) -> str:
    """The nearest name, as the end of a sentence."""
    if name in LIKELY:
        return f"; did you mean {LIKELY[name]}?"
    near = difflib.get_close_matches(name, [*FIELDS, *NAMES, SEED, "validation_data", "peft_config", "columns"], 1, 0.7)
    return f"; did you mean {near[0]}?" if near else ""


class _Builder:
    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.values: dict[tuple[Section, str], tuple[str, Any]] = {}

    def build(self, base_model: str, fields: Mapping[str, Any], peft_config: Any, args: Any) -> Request:
        if not isinstance(base_model, str):
            raise invalid([Violation("base_model", f"must be the name of a registered model, got {type(base_model).__name__}; it "
                                                   "comes first, then the data")], "of the job")
        check_text("base_model", base_model)
        read = sft.read(args) if args is not None else sft.Read({}, None, [])
        self.violations += read.violations
        self._take({name: value for name, value in fields.items() if value is not None})
        said, self.values = self.values, {}
        self._take(read.fields)
        theirs = {key: (f"{type(args).__name__}.{name}", value) for key, (name, value) in self.values.items()}
        self.values = theirs | said
        self._by_steps(fields, args)
        self._schedule()
        request = Request(jobs_pb2.Job(base_model=base_model), warnings=read.warnings)
        for (section, field), (name, value) in self.values.items():
            path = f"{section}.{field}" if section else field
            request.origins[path] = name
            if field in MAY_BE_EPOCH and value == "epoch":
                request.by_epoch.append(field)
            else:
                self._set(request.job, section, field, name, value)
        if peft_config is not None:
            self._peft(request, peft_config)
        if ("training", "train_on") not in self.values:
            request.sft_loss = read.loss
        if self.violations:
            raise invalid(self.violations, "of the job")
        return request

    def _note(self, name: str, what: str) -> None:
        violation = Violation(name, what)
        if violation not in self.violations:  # one argument may be two fields
            self.violations.append(violation)

    def _put(self, section: Section, field: str, name: str, value: Any, said: str = "") -> None:
        other = self.values.setdefault((section, field), (name, value))
        if other[0] != name and other[1] != value:
            self._note(name, f"says {said or shown(value)}, but {other[0]} says {shown(other[1])}: they are one field; leave one out")

    def _take(self, fields: Mapping[str, Any]) -> None:
        given = {name: plain(value) for name, value in fields.items()}
        self._take_batch(given)
        for name, value in given.items():
            if name in NAMES:
                self._put(*NAMES[name], name, value)
            elif name in FIELDS:
                self._put(FIELDS[name], name, name, value)
            elif name == SEED:
                self._put("adapter", SEED, SEED, value)
                if "data_seed" not in given:
                    self._put("training", SEED, SEED, value)
            elif name not in needless.NAMES:
                self._note(name, f"there is no such field{suggest(name)}")
        for name in filter(given.__contains__, needless.FIXED):
            wrong = needless.why_not(name, given[name])
            if wrong:
                self._note(name, wrong)
                continue
            for (meaning, value), (field, means) in needless.MEANINGS.items():
                if meaning == name and value == given[name]:
                    self._put("training", field, name, means, repr(value) + (f", which is {means!r}" if means != value else ""))

    def _by_steps(self, fields: Mapping[str, Any], args: Any) -> None:
        """Strategies that are said by name: an SFTConfig says how many steps too, unless it has another strategy. Without
        one transformers evaluate every logging_steps."""
        for name, theirs, *steps in (("save_strategy", "save_strategy", "save_steps", "checkpoint_every_steps"),
                                     ("eval_strategy", "eval_strategy", "eval_steps", "eval_every_steps"),
                                     ("evaluation_strategy", "eval_strategy", "eval_steps", "eval_every_steps")):
            if plain(fields.get(name)) != "steps" or any(fields.get(field) is not None for field in steps):
                continue
            config = plain(getattr(args, theirs, None))
            if config not in (None, "steps"):
                self._note(name, f"says 'steps', but {type(args).__name__}.{theirs} says {config!r}: say {steps[0]}, or leave one out")
            elif steps[0] == "eval_steps" and ("training", "eval_every_steps") not in self.values:
                if fields.get("logging_steps") is None:
                    self._note(name, "needs eval_steps beside it: how many steps from one evaluation to the next")
                else:
                    self._put("training", "eval_every_steps", "logging_steps", plain(fields["logging_steps"]))

    def _take_batch(self, given: dict[str, Any]) -> None:
        """batch_size = per_device_train_batch_size x gradient_accumulation_steps"""
        if ACCUMULATION not in given:
            return
        times = given.pop(ACCUMULATION)
        if PER_DEVICE not in given:
            return self._note(ACCUMULATION, f"needs {PER_DEVICE} beside it; batch_size is their product")
        rows = given.pop(PER_DEVICE)
        counts = {ACCUMULATION: times, PER_DEVICE: rows}
        wrong = [name for name, value in counts.items() if not isinstance(value, int) or isinstance(value, bool) or value < 1]
        for name in wrong:
            self._note(name, f"must be a whole number of at least 1, got {shown(counts[name])}")
        if not wrong:
            name = PER_DEVICE if times == 1 else f"{PER_DEVICE} x {ACCUMULATION}"
            self._put("training", "batch_size", name, times * rows)

    def _schedule(self) -> None:
        """transformers' words for schedules, in which "constant" has no warm-up."""
        key = ("training", "schedule")
        if key not in self.values or not isinstance(self.values[key][1], str):
            return
        name, value = self.values[key]
        warms_up = any(self.values.get(("training", field), ("", 0))[1] for field in ("warmup_steps", "warmup_ratio"))
        if value == "constant" and warms_up:
            self._note(name, '"constant" has no warm-up in transformers; say "constant_with_warmup", or leave the '
                             "warm-up out")
        self.values[key] = (name, "CONSTANT" if value == "constant_with_warmup" else value)

    def _set(self, job: jobs_pb2.Job, section: Section, field: str, name: str, value: Any) -> None:
        message: Any = getattr(job, section) if section else job
        descriptor = message.DESCRIPTOR.fields_by_name[field]
        if descriptor.enum_type is not None and not isinstance(value, int):
            words = [v.name for v in descriptor.enum_type.values if v.number]
            if not isinstance(value, str) or value.upper() not in words:
                return self._note(name, f"must be one of {', '.join(words)}, got {shown(value)}")
            value = descriptor.enum_type.values_by_name[value.upper()].number
        if field == "target_modules" and isinstance(value, str):
            if value != "all-linear":
                return self._note(name, f'must be a list of names, or "all-linear", got {shown(value)}; an expression is '
                                        "target_regex")
            value = [value]
        if isinstance(value, float) and value.is_integer() and descriptor.cpp_type in (
                FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT64):
            value = int(value)
        if isinstance(value, float) and descriptor.cpp_type == FieldDescriptor.CPPTYPE_INT32:
            hint = "; max_steps ends a job within an epoch" if field == "epochs" else ""
            return self._note(name, f"must be a whole number, got {value!r}{hint}")
        if field == "labels" and not isinstance(value, Mapping):
            return self._note(name, f"must be a mapping, such as {{'team': 'math'}}, got {shown(value)}")
        if field == "labels":
            for key, text in value.items():
                if not isinstance(key, str) or not isinstance(text, str):
                    return self._note(name, f"keys and values must be text, got {shown(key)}: {shown(text)}")
        if fault := fault_in(descriptor, value):
            return self._note(f"{name}{fault.part}", str(fault))
        put(message, field, value)

    def _peft(self, request: Request, config: Any) -> None:
        try:
            request.job.adapter.peft_config = sft.peft_text(config)
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            self._note("peft_config", f"is no LoraConfig: {error}")
        request.origins["adapter.peft_config"] = "peft_config"
