"""Names of PEFT's, TRL's and transformers' that need not be said, as they say what is done here anyway.

The table is that of client/inputs/needless_names.cc, which `lora` reads job files by; tests/e2e/python_names_test.py holds
both equal.
"""

from __future__ import annotations

import json
from typing import Any

_PLAIN = "plain LoRA, rsLoRA (use_rslora) and LoRA+ (training.loraplus_lr_ratio) are done"
_BEST = "the best checkpoint is that of the lowest validation loss"
_PLACES = "the daemon places models on devices itself (lora model add --stages)"
_PRECISION = (
    "base models stay in the precision of their device: bf16 on GPUs (float32 where the daemon was started with "
    "--worker-precision fp32), float32 on CPUs")
_WORKERS = (
    "jobs train on the daemon's workers, whatever their device; lorad serve --workers cpu:1 has one on the CPU alone")
_EVALUATIONS = "evaluations come by steps or epochs"
_EMPTY: list[Any] = [False, [], {}, ""]

# Name -> what it may say, and why nothing else.
FIXED: dict[str, tuple[list[Any], str]] = {
    "peft_type": (["LORA"], "LoRA is the only kind of adapter here"),
    "task_type": (["CAUSAL_LM"], "models here are causal language models, and are trained as such"),
    "bias": (["none"], "biases are not trained, LoRA's matrices alone"),
    "fan_in_fan_out": ([False], "no model here has transposed weights, as GPT-2 has"),
    "modules_to_save": ([[]], "nothing is trained in whole; target_modules says which projections get LoRA"),
    "init_lora_weights": ([True], "A is drawn as by PEFT's default and B is zero; init_from begins with an adapter"),
    "layers_pattern": (["", []], "layers_to_transform goes by the numbers in paths; target_regex says more"),
    "use_dora": (_EMPTY, _PLAIN),
    "lora_bias": (_EMPTY, _PLAIN),
    "use_qalora": (_EMPTY, _PLAIN),
    "use_bdlora": (_EMPTY, _PLAIN),
    "alora_invocation_tokens": (_EMPTY, _PLAIN),
    "arrow_config": (_EMPTY, _PLAIN),
    "corda_config": (_EMPTY, _PLAIN),
    "ensure_weight_tying": (_EMPTY, _PLAIN),
    "kasa_config": (_EMPTY, _PLAIN),
    "layer_replication": (_EMPTY, _PLAIN),
    "loftq_config": (_EMPTY, _PLAIN),
    "lora_ga_config": (_EMPTY, _PLAIN),
    "megatron_config": (_EMPTY, _PLAIN),
    "monteclora_config": (_EMPTY, _PLAIN),
    "target_parameters": (_EMPTY, _PLAIN),
    "trainable_token_indices": (_EMPTY, _PLAIN),
    "velora_config": (_EMPTY, _PLAIN),
    "optim": (["adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused"],
        "AdamW is the optimizer, with its state in float32"),
    "optim_args": ([""], "AdamW's are adam_beta1, adam_beta2, adam_epsilon and weight_decay"),
    "lr_scheduler_kwargs": ([{}], "schedules have no options but warm-up"),
    "save_strategy": (["no", "steps", "epoch"],
        "checkpoints come by steps or epochs; checkpoint_keep_best = 1 keeps the best one"),
    "eval_strategy": (["no", "steps", "epoch"], _EVALUATIONS),
    "evaluation_strategy": (["no", "steps", "epoch"], _EVALUATIONS),
    "load_best_model_at_end": ([False],
        "a job's adapter is that of its last step; say checkpoint_keep_best = 1, and fetch the best one "
        "with `lora checkpoint get JOB --best` or job.adapter(path, best=True)"),
    "metric_for_best_model": (["loss", "eval_loss"], _BEST),
    "greater_is_better": ([False], _BEST),
    "packing": ([False],
        "rows of all jobs are packed into microbatches anyway, each trained as if it were alone; "
        "batch_size counts rows"),
    "eval_packing": ([False], "rows are packed into microbatches anyway, each judged as if it were alone"),
    "group_by_length": ([False],
        "rows come by the seed, or with shuffle = false as in the file; packing leaves no room empty for "
        "short ones"),
    "train_sampling_strategy": (["random"], "rows come by the seed; say shuffle = false for the order of the file"),
    "neftune_noise_alpha": ([0], "embeddings get no noise"),
    "label_smoothing_factor": ([0], "labels are not smoothed"),
    "loss_type": (["nll"], "the loss is the mean cross entropy of the tokens that are trained on"),
    "completion_only_loss": ([True], "say train_on = ALL for every token of a row"),
    "assistant_only_loss": ([True], "say train_on = ALL for every token of a row"),
    "dataset_text_field": (["text"], "columns are named when rows are stored: text=NAME, by --columns or columns"),
    "auto_find_batch_size": ([False], "batch_size counts the rows of a step, however many fit a device"),
    "push_to_hub": ([False], "fetch the adapter with `lora checkpoint get` or job.adapter, and push that"),
    "resume_from_checkpoint": ([False], "a job goes on by itself; adapter.init_from begins with another job's checkpoint"),
    "deepspeed": (["", {}], _PLACES),
    "fsdp": (["", [], False], _PLACES),
    "fsdp_config": ([{}], _PLACES),
    "accelerator_config": ([{}, ""], "the daemon runs jobs its own way; say gradient_accumulation_steps for its num_steps"),
    "load_in_4bit": ([False], _PRECISION),
    "load_in_8bit": ([False], _PRECISION),
    "bf16": ([True], _PRECISION),
    "fp16": ([False], _PRECISION),
    "fp16_full_eval": ([False], _PRECISION),
    "use_cpu": ([False], _WORKERS),
    "no_cuda": ([False], _WORKERS),
    "use_mps_device": ([False], _WORKERS),
}
# Name and what it says, which it may -> the field that could say something else, and what that says then.
MEANINGS: dict[tuple[str, Any], tuple[str, Any]] = {
    ("train_sampling_strategy", "random"): ("shuffle", True),
    ("completion_only_loss", True): ("train_on", "ASSISTANT"),
    ("assistant_only_loss", True): ("train_on", "ASSISTANT"),
    ("save_strategy", "no"): ("checkpoint_every_steps", 0),
    ("save_strategy", "epoch"): ("checkpoint_every_steps", "epoch"),
    ("eval_strategy", "no"): ("eval_every_steps", 0),
    ("eval_strategy", "epoch"): ("eval_every_steps", "epoch"),
    ("evaluation_strategy", "no"): ("eval_every_steps", 0),
    ("evaluation_strategy", "epoch"): ("eval_every_steps", "epoch"),
}
# PEFT's notes, and settings of what is off.
NOTES = [
    "auto_mapping", "base_model_name_or_path", "eva_config", "inference_mode", "megatron_core", "peft_version",
    "qalora_group_size", "revision",
]
# How and where SFTTrainer runs: devices, memory, speed, logs, files. The daemon has its own ways.
IGNORED = [
    "output_dir", "overwrite_output_dir", "logging_dir", "logging_strategy", "logging_steps", "logging_first_step",
    "log_on_each_node", "logging_nan_inf_filter", "include_num_input_tokens_seen", "log_level", "log_level_replica",
    "disable_tqdm", "report_to", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id",
    "tf32", "bf16_full_eval", "gradient_checkpointing", "gradient_checkpointing_kwargs", "activation_offloading", "torch_compile",
    "torch_compile_backend", "torch_compile_mode", "use_liger_kernel", "liger_kernel_config", "use_cache",
    "torch_empty_cache_steps", "average_tokens_across_devices", "per_device_eval_batch_size",
    "eval_accumulation_steps", "eval_on_start", "prediction_loss_only", "eval_do_concat_batches", "do_train",
    "do_eval", "full_determinism", "dataloader_num_workers", "dataloader_pin_memory",
    "dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_multiprocessing_context",
    "dataset_num_proc", "padding_free", "pad_to_multiple_of", "skip_memory_metrics", "local_rank",
    "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph", "ddp_backend",
    "ddp_timeout", "debug", "remove_unused_columns", "save_only_model", "save_on_each_node", "hub_token",
    "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision", "enable_jit_checkpoint",
]
NAMES = frozenset([*FIXED, *NOTES, *IGNORED])


def why_not(name: str, value: Any) -> str:
    """What is wrong with this value of one of NAMES; "" where it says what is done anyway."""
    values, why = FIXED.get(name, ([value], ""))
    if value in values:
        return ""
    return f"must be {' or '.join(map(json.dumps, values))}, or be left out, got {value!r}: {why}"
