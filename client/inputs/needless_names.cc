#include "client/inputs/needless_names.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace lorad::client {
namespace {

using nlohmann::json;

constexpr char kPlain[] =
    "plain LoRA, rsLoRA (use_rslora) and LoRA+ (training.loraplus_lr_ratio) are done";
constexpr char kBest[] = "the best checkpoint is that of the lowest validation loss";
constexpr char kPlaces[] = "the daemon places models on devices itself (lora model add --stages)";
constexpr char kPrecision[] =
    "base models stay in the precision of their device: bf16 on GPUs (float32 where the daemon was "
    "started with --worker-precision fp32), float32 on CPUs";
constexpr char kWorkers[] =
    "jobs train on the daemon's workers, whatever their device; lorad serve --workers cpu:1 has "
    "one on the CPU alone";
constexpr char kEvaluations[] = "evaluations come by steps or epochs";
constexpr char kEmpty[] = R"([false, [], {}, ""])";

constexpr NeedlessName kNames[] = {
    {"adapter", "peft_type", R"(["LORA"])", "LoRA is the only kind of adapter here"},
    {"adapter", "task_type", R"(["CAUSAL_LM"])",
     "models here are causal language models, and are trained as such"},
    {"adapter", "bias", R"(["none"])", "biases are not trained, LoRA's matrices alone"},
    {"adapter", "fan_in_fan_out", R"([false])",
     "no model here has transposed weights, as GPT-2 has"},
    {"adapter", "modules_to_save", R"([[]])",
     "nothing is trained in whole; target_modules says which projections get LoRA"},
    {"adapter", "init_lora_weights", R"([true])",
     "A is drawn as by PEFT's default and B is zero; init_from begins with an adapter"},
    {"adapter", "layers_pattern", R"(["", []])",
     "layers_to_transform goes by the numbers in paths; target_regex says more"},
    {"adapter", "use_dora", kEmpty, kPlain},
    {"adapter", "lora_bias", kEmpty, kPlain},
    {"adapter", "use_qalora", kEmpty, kPlain},
    {"adapter", "use_bdlora", kEmpty, kPlain},
    {"adapter", "alora_invocation_tokens", kEmpty, kPlain},
    {"adapter", "arrow_config", kEmpty, kPlain},
    {"adapter", "corda_config", kEmpty, kPlain},
    {"adapter", "ensure_weight_tying", kEmpty, kPlain},
    {"adapter", "kasa_config", kEmpty, kPlain},
    {"adapter", "layer_replication", kEmpty, kPlain},
    {"adapter", "loftq_config", kEmpty, kPlain},
    {"adapter", "lora_ga_config", kEmpty, kPlain},
    {"adapter", "megatron_config", kEmpty, kPlain},
    {"adapter", "monteclora_config", kEmpty, kPlain},
    {"adapter", "target_parameters", kEmpty, kPlain},
    {"adapter", "trainable_token_indices", kEmpty, kPlain},
    {"adapter", "velora_config", kEmpty, kPlain},
    {"adapter", "auto_mapping", "", ""},
    {"adapter", "base_model_name_or_path", "", ""},
    {"adapter", "eva_config", "", ""},
    {"adapter", "inference_mode", "", ""},
    {"adapter", "megatron_core", "", ""},
    {"adapter", "peft_version", "", ""},
    {"adapter", "qalora_group_size", "", ""},
    {"adapter", "revision", "", ""},
    {"training", "optim", R"(["adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused"])",
     "AdamW is the optimizer, with its state in float32"},
    {"training", "optim_args", R"([""])",
     "AdamW's are adam_beta1, adam_beta2, adam_epsilon and weight_decay"},
    {"training", "lr_scheduler_kwargs", R"([{}])", "schedules have no options but warm-up"},
    {"training", "save_strategy", R"(["no", "steps", "epoch"])",
     "checkpoints come by steps or epochs; checkpoint_keep_best = 1 keeps the best one"},
    {"training", "eval_strategy", R"(["no", "steps", "epoch"])", kEvaluations},
    {"training", "evaluation_strategy", R"(["no", "steps", "epoch"])", kEvaluations},
    {"training", "load_best_model_at_end", R"([false])",
     "a job's adapter is that of its last step; say checkpoint_keep_best = 1, and fetch the best "
     "one with `lora checkpoint get JOB --best` or job.adapter(path, best=True)"},
    {"training", "metric_for_best_model", R"(["loss", "eval_loss"])", kBest},
    {"training", "greater_is_better", R"([false])", kBest},
    {"training", "packing", R"([false])",
     "rows of all jobs are packed into microbatches anyway, each trained as if it were alone; "
     "batch_size counts rows"},
    {"training", "eval_packing", R"([false])",
     "rows are packed into microbatches anyway, each judged as if it were alone"},
    {"training", "group_by_length", R"([false])",
     "rows come by the seed, or with shuffle = false as in the file; packing leaves no room empty "
     "for short ones"},
    {"training", "train_sampling_strategy", R"(["random"])",
     "rows come by the seed; say shuffle = false for the order of the file"},
    {"training", "neftune_noise_alpha", R"([0])", "embeddings get no noise"},
    {"training", "label_smoothing_factor", R"([0])", "labels are not smoothed"},
    {"training", "loss_type", R"(["nll"])",
     "the loss is the mean cross entropy of the tokens that are trained on"},
    {"training", "completion_only_loss", R"([true])",
     "say train_on = ALL for every token of a row"},
    {"training", "assistant_only_loss", R"([true])", "say train_on = ALL for every token of a row"},
    {"training", "dataset_text_field", R"(["text"])",
     "columns are named when rows are stored: text=NAME, by --columns or columns"},
    {"training", "auto_find_batch_size", R"([false])",
     "batch_size counts the rows of a step, however many fit a device"},
    {"training", "push_to_hub", R"([false])",
     "fetch the adapter with `lora checkpoint get` or job.adapter, and push that"},
    {"training", "resume_from_checkpoint", R"([false])",
     "a job goes on by itself; adapter.init_from begins with another job's checkpoint"},
    {"training", "deepspeed", R"(["", {}])", kPlaces},
    {"training", "fsdp", R"(["", [], false])", kPlaces},
    {"training", "fsdp_config", R"([{}])", kPlaces},
    {"training", "load_in_4bit", R"([false])", kPrecision},
    {"training", "load_in_8bit", R"([false])", kPrecision},
    {"training", "bf16", R"([true])", kPrecision},
    {"training", "fp16", R"([false])", kPrecision},
    {"training", "fp16_full_eval", R"([false])", kPrecision},
    {"training", "use_cpu", R"([false])", kWorkers},
    {"training", "no_cuda", R"([false])", kWorkers},
    {"training", "use_mps_device", R"([false])", kWorkers},
    // How and where a trainer runs: devices, memory, speed, logs, files. The daemon has its own ways.
    {"training", "output_dir", "", ""},
    {"training", "overwrite_output_dir", "", ""},
    {"training", "logging_dir", "", ""},
    {"training", "logging_strategy", "", ""},
    {"training", "logging_steps", "", ""},
    {"training", "logging_first_step", "", ""},
    {"training", "log_on_each_node", "", ""},
    {"training", "logging_nan_inf_filter", "", ""},
    {"training", "include_num_input_tokens_seen", "", ""},
    {"training", "log_level", "", ""},
    {"training", "log_level_replica", "", ""},
    {"training", "disable_tqdm", "", ""},
    {"training", "report_to", "", ""},
    {"training", "project", "", ""},
    {"training", "trackio_space_id", "", ""},
    {"training", "trackio_bucket_id", "", ""},
    {"training", "trackio_static_space_id", "", ""},
    {"training", "tf32", "", ""},
    {"training", "bf16_full_eval", "", ""},
    {"training", "gradient_checkpointing", "", ""},
    {"training", "gradient_checkpointing_kwargs", "", ""},
    {"training", "activation_offloading", "", ""},
    {"training", "torch_compile", "", ""},
    {"training", "torch_compile_backend", "", ""},
    {"training", "torch_compile_mode", "", ""},
    {"training", "use_liger_kernel", "", ""},
    {"training", "liger_kernel_config", "", ""},
    {"training", "use_cache", "", ""},
    {"training", "torch_empty_cache_steps", "", ""},
    {"training", "average_tokens_across_devices", "", ""},
    {"training", "per_device_eval_batch_size", "", ""},
    {"training", "eval_accumulation_steps", "", ""},
    {"training", "eval_on_start", "", ""},
    {"training", "prediction_loss_only", "", ""},
    {"training", "eval_do_concat_batches", "", ""},
    {"training", "do_train", "", ""},
    {"training", "do_eval", "", ""},
    {"training", "full_determinism", "", ""},
    {"training", "accelerator_config", R"([{}, ""])",
     "the daemon runs jobs its own way; say gradient_accumulation_steps for its num_steps"},
    {"training", "dataloader_num_workers", "", ""},
    {"training", "dataloader_pin_memory", "", ""},
    {"training", "dataloader_persistent_workers", "", ""},
    {"training", "dataloader_prefetch_factor", "", ""},
    {"training", "dataloader_multiprocessing_context", "", ""},
    {"training", "dataset_num_proc", "", ""},
    {"training", "padding_free", "", ""},
    {"training", "pad_to_multiple_of", "", ""},
    {"training", "skip_memory_metrics", "", ""},
    {"training", "local_rank", "", ""},
    {"training", "ddp_find_unused_parameters", "", ""},
    {"training", "ddp_bucket_cap_mb", "", ""},
    {"training", "ddp_broadcast_buffers", "", ""},
    {"training", "ddp_static_graph", "", ""},
    {"training", "ddp_backend", "", ""},
    {"training", "ddp_timeout", "", ""},
    {"training", "debug", "", ""},
    {"training", "remove_unused_columns", "", ""},
    {"training", "save_only_model", "", ""},
    {"training", "save_on_each_node", "", ""},
    {"training", "hub_token", "", ""},
    {"training", "hub_private_repo", "", ""},
    {"training", "hub_model_id", "", ""},
    {"training", "hub_strategy", "", ""},
    {"training", "hub_always_push", "", ""},
    {"training", "hub_revision", "", ""},
    {"training", "enable_jit_checkpoint", "", ""},
};

std::string Text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

absl::Span<const NeedlessName> NeedlessNames() { return kNames; }

std::string WhyNot(const NeedlessName& name, const json& value) {
  if (name.values.empty() || value.is_null()) return "";
  std::string known;
  for (const json& one : json::parse(name.values)) {
    if (one == value) return "";
    absl::StrAppend(&known, known.empty() ? "" : " or ", Text(one));
  }
  return absl::StrCat("must be ", known, ", or be left out, got ", Text(value), ": ", name.why);
}

}  // namespace lorad::client
