// The families of decoders that are read, each a row of traits: what its config does not say by a
// field. All else is shared (describe_model.cc). To add one: docs/formats/hf_config.md.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "storage/files/config_reader.h"

namespace lorad::storage {

struct Family {
  // Which projections have a bias.
  enum class Biases {
    kNone,        // and attention_bias, mlp_bias may only be false
    kQkv,         // q, k and v
    kAttention,   // attention_bias: q, k, v, o; mlp_bias may only be false
    kConfigured,  // the same, and mlp_bias: gate, up, down
  };
  // Where a block has a norm.
  enum class Norms {
    kBefore,  // input_layernorm, post_attention_layernorm
    kBehind,  // post_attention_layernorm, post_feedforward_layernorm
    kAround,  // both, the MLP's first pre_feedforward_layernorm
  };
  // q_norm and k_norm of attention.
  enum class QkNorms { kNone, kOfHeads, kOfRows };
  // Which layers attend within sliding_window.
  enum class Windows {
    kNone,      // none, unless layer_types says so
    kAll,       // all
    kSwitched,  // with use_sliding_window, those from max_window_layers on
    kPattern,   // all but every window_pattern-th
    kNoPe,      // with use_sliding_window, those that turn nothing
  };

  std::string_view architecture;
  std::string_view model_type;
  // A JSON object: what transformers takes for fields that are absent (not null).
  std::string_view defaults = "{}";
  Biases biases = Biases::kNone;
  bool kv_heads_default_to_heads = false;
  Norms norms = Norms::kBefore;
  QkNorms qk_norms = QkNorms::kNone;
  Windows windows = Windows::kNone;
  int window_pattern = 0;
  double norm_offset = 0;           // NormSpec::offset of every norm
  bool fused = false;               // qkv_proj and gate_up_proj
  bool embeds_by_root = false;      // the embedding times sqrt(hidden_size)
  bool scores_scaled = false;       // query_pre_attn_scalar; has *_logit_softcapping
  bool scores_capped = false;       // by attn_logit_softcapping, which others ignore
  bool multipliers = false;         // of embedding, residual, scores and logits
  double rope_theta = 10000;        // where the config has none
  double rope_local_theta = 10000;  // the same, of sliding layers
  bool rope_by_layer_type = false;  // rope_parameters has full_attention and sliding_attention
  bool turns_part = false;          // partial_rotary_factor may be below 1
  bool takes_longrope = false;      // an older rope type of "su" or "yarn" means longrope
  bool tower = false;               // a text model beside a tower for images: text_config
  bool default_targets = false;     // PEFT has q_proj and v_proj for it (DefaultTargetModules)
};

// The family that `config` names by architectures and model_type. Refused: none of the two, several
// architectures, others than these (with their names).
absl::StatusOr<const Family*> FindFamily(ConfigReader& config);
// Of a tower's text model.
absl::StatusOr<const Family*> FindTextFamily(ConfigReader& config);

}  // namespace lorad::storage
