"""TRL's SFTConfig and PEFT's LoraConfig, read as they are, without either library.

Every field of an SFTConfig is one of three: it means something here and is taken, its default too, so that the job is
what SFTTrainer would have done; it is about how and where SFTTrainer runs, and means nothing here; or it must stand at
its default, and is refused by name where it does not, or warned of.
"""

from __future__ import annotations

import dataclasses
import json
import numbers
from collections.abc import Mapping
from typing import Any

from lorad import needless
from lorad.arguments import shown
from lorad.errors import Violation

# Taken under their own names, where they are not None.
TAKEN = ["learning_rate", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps",
         "lr_scheduler_type", "warmup_ratio", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm",
         "seed", "data_seed", "max_seq_length", "save_total_limit"]
# Taken by the functions below.
READ = ["max_steps", "max_length", "warmup_steps", "optim", "save_strategy", "save_steps", "eval_strategy",
        "evaluation_strategy", "eval_steps", "run_name", "load_best_model_at_end", "completion_only_loss",
        "assistant_only_loss", "train_sampling_strategy"]
COUNTS = ["max_steps", "warmup_steps", "save_steps", "eval_steps", "logging_steps"]
# Warned of where they say what is not done: on a machine without a GPU TRL wants them, wherever the daemon is.
OF_THE_MACHINE = ["bf16", "use_cpu", "no_cuda", "use_mps_device"]


@dataclasses.dataclass(frozen=True)
class Loss:
    """Which tokens are trained on, as TrainingConfig.TrainOn has it."""

    of_conversations: str
    of_completions: str


@dataclasses.dataclass(frozen=True)
class Read:
    """What an SFTConfig says: fields by names that `names.build` takes."""

    fields: dict[str, Any]
    loss: Loss | None
    violations: list[Violation]
    warnings: list[str] = dataclasses.field(default_factory=list)


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)  # of an enum


def read(args: Any) -> Read:
    """Reads an SFTConfig, or another dataclass of TrainingArguments' fields."""
    kind = type(args).__name__
    if not dataclasses.is_dataclass(args) or isinstance(args, type):
        return Read({}, None, [Violation("args", f"must be an SFTConfig, got {kind}")])
    values = {field.name: _plain(getattr(args, field.name)) for field in dataclasses.fields(args)}
    fields = {name: values[name] for name in TAKEN if values.get(name) is not None}
    mistakes: list[Violation] = []

    def refuse(name: str, why: str) -> None:
        mistakes.append(Violation(f"{kind}.{name}", why))

    _read_steps(values, fields, refuse)
    if "max_length" in values:
        if values["max_length"] is None:
            refuse("max_length", "must be a number: rows are cut there")
        else:
            fields["max_length"] = values["max_length"]
    for name in ("optim", "load_best_model_at_end"):
        if values.get(name) and (wrong := needless.why_not(name, values[name])):
            refuse(name, wrong)
    order = values.get("train_sampling_strategy", "random")
    if order == "sequential":
        fields["shuffle"] = False
    elif order != "random":
        refuse("train_sampling_strategy", f'must be "random" or "sequential", got {order!r}')
    if values.get("run_name") and values["run_name"] != values.get("output_dir"):
        fields["run_name"] = values["run_name"]
    accelerator = getattr(args, "accelerator_config", None)
    if (getattr(accelerator, "gradient_accumulation_kwargs", None) or {}).get("num_steps"):
        refuse("accelerator_config", needless.FIXED["accelerator_config"][1])
    _refuse_others(args, values, refuse)
    warnings = [f"{kind}.{field.name}: is {values[field.name]!r}, which changes nothing: {needless.FIXED[field.name][1]}"
                for field in dataclasses.fields(args) if field.name in OF_THE_MACHINE
                and values[field.name] not in (None, field.default) and needless.why_not(field.name, values[field.name])]
    loss = None
    if "assistant_only_loss" in values:
        loss = Loss(of_conversations="ASSISTANT" if values["assistant_only_loss"] else "ALL",
                    of_completions="ALL" if values.get("completion_only_loss") is False else "ASSISTANT")
    return Read(fields, loss, mistakes, warnings)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and float("-inf") < value < float("inf")


def _read_steps(values: dict[str, Any], fields: dict[str, Any], refuse: Any) -> None:
    """What is counted in steps."""
    wrong_counts = [name for name in COUNTS if values.get(name) is not None and not _is_number(values[name])]
    for name in wrong_counts:
        refuse(name, f"must be a number, got {shown(values[name])}")
    if wrong_counts:
        return
    if (values.get("max_steps") or 0) > 0:
        fields["max_steps"] = values["max_steps"]
    warmup = values.get("warmup_steps") or 0
    if 0 < warmup < 1:  # a share of the steps, since transformers 5
        fields["warmup_ratio"] = warmup
    elif warmup:
        fields["warmup_steps"] = warmup
        fields.pop("warmup_ratio", None)  # steps go before it in transformers
    for strategy, steps, default in (("save_strategy", "save_steps", 500), ("eval_strategy", "eval_steps", None)):
        said = values.get(strategy, "steps" if default else values.get("evaluation_strategy"))
        every = values.get(steps) or default or values.get("logging_steps") or 0
        if said is None:
            continue
        if wrong := needless.why_not(strategy, said):
            refuse(strategy, wrong)
        elif said != "steps":
            fields[steps] = 0 if said == "no" else said
        elif every != int(every) or every < 1:
            refuse(steps, f"must be a whole number of at least 1, got {every!r}")
        else:
            fields[steps] = int(every)


def _refuse_others(args: Any, values: dict[str, Any], refuse: Any) -> None:
    """All that is not known here stands at its default."""
    known = {*TAKEN, *READ, *OF_THE_MACHINE, *needless.IGNORED, "accelerator_config"}
    for field in dataclasses.fields(args):
        if field.name in known:
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        value = values[field.name]
        # What __post_init__ makes of nothing: [] of None, {} of None, ...
        if value != _plain(default) and (value or default):
            wrong = f"{value!r} is not supported; it must be {_plain(default)!r}, its default"
            if field.name in needless.FIXED:
                wrong = needless.why_not(field.name, value)
            if wrong:
                refuse(field.name, wrong)


def peft_text(config: Any) -> str:
    """The text of the adapter_config.json that `config` (a LoraConfig) would be saved as."""
    said = config if isinstance(config, Mapping) else config.to_dict()
    if not isinstance(said, Mapping):
        raise TypeError(f"{type(config).__name__}.to_dict gives no mapping")

    def convert(value: Any) -> Any:
        if isinstance(value, (set, frozenset)):
            return sorted(value)
        if isinstance(value, Mapping):
            return dict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.asdict(value)
        plain = _plain(value)
        if plain is value:
            raise TypeError(f"{value!r} has no JSON")
        return plain

    return json.dumps({key: _plain(value) for key, value in said.items()}, default=convert)
