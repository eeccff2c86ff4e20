#include "storage/models/config_fields.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace lorad::storage {
namespace {

// Ids that the tokenizer's files settle, settings of generation, of initialization, of
// transformers' own working.
const std::vector<std::string_view>& HarmlessFields() {
  static const auto* const fields = new std::vector<std::string_view>{
      "_attn_implementation", "_attn_implementation_autoset", "_commit_hash",
      "_flash_attn_2_enabled", "_name_or_path", "attn_implementation", "bad_words_ids",
      "begin_suppress_tokens", "bos_token_id", "cache_implementation", "decoder_start_token_id",
      "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
      "eos_token_id", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
      "forced_eos_token_id", "id2label", "initializer_range", "is_llama_config", "label2id",
      "length_penalty", "max_length", "max_sequence_length", "min_length", "name_or_path",
      "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
      "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix",
      "pretraining_tp", "problem_type", "remove_invalid_values", "repetition_penalty",
      "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
      "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p", "torchscript",
      "transformers.js_config", "transformers_version", "typical_p", "unk_token_id",
      "unsloth_fixed", "unsloth_version", "use_cache",
      // Only with a window that is switched on.
      "max_window_layers"};
  return *fields;
}

}  // namespace

void CheckOtherFields(ConfigReader& config) {
  config.OnlyNeutral("add_cross_attention", false);
  config.OnlyNeutral("attention_dropout", 0.0);
  config.OnlyNeutral("chunk_size_feed_forward", 0);
  config.OnlyNeutral("cross_attention_hidden_size", nullptr);
  config.OnlyNeutral("embd_pdrop", 0.0);
  config.OnlyNeutral("full_attn_mod", 1);
  config.OnlyNeutral("hidden_dropout", 0.0);
  config.OnlyNeutral("interpolate_factor", 1);
  config.OnlyNeutral("is_decoder", false);
  config.OnlyNeutral("is_encoder_decoder", false);
  config.OnlyNeutral("lm_head_bias", false);
  config.OnlyNeutral("pruned_heads", nlohmann::json::object());
  config.OnlyNeutral("resid_pdrop", 0.0);
  config.OnlyNeutral("rope_interleaved", false);
  config.OnlyNeutral("tie_encoder_decoder", false);
  config.OnlyNeutral("tf_legacy_loss", false);
  config.OnlyNeutral("use_bfloat16", false);
  config.OnlyNeutral("use_bidirectional_attention", false);
  config.OnlyNeutral("use_mrope", false);
  config.Ignore(HarmlessFields());
}

void IgnoreTowerFields(ConfigReader& config) {
  config.Ignore(HarmlessFields());
  config.Ignore({"boi_token_index", "eoi_token_index", "image_token_id", "image_token_index",
                 "mm_tokens_per_image", "multimodal_projector_bias", "projector_hidden_act",
                 "spatial_merge_size", "vision_config", "vision_feature_layer"});
}

}  // namespace lorad::storage
