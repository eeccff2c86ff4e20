#pragma once

#include <string>

namespace lorad::storage {

// config.json files as their makers published them (those of gated models without their ids).

inline const std::string kLlama2_7b = R"({
  "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"],
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0",
  "use_cache": true, "vocab_size": 32000})";

inline const std::string kLlama31_8b = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})";

// As transformers 5 writes it.
inline const std::string kLlama32_1b = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "dtype": "bfloat16", "eos_token_id": 128001, "head_dim": 64,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_parameters": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_theta": 500000.0, "rope_type": "llama3"},
  "tie_word_embeddings": true, "transformers_version": "5.17.0", "use_cache": true,
  "vocab_size": 128256})";

inline const std::string kTinyLlama = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 5632, "max_position_embeddings": 2048, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 22, "num_key_value_heads": 4,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.35.0",
  "use_cache": true, "vocab_size": 32000})";

inline const std::string kQwen25_05b = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
  "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.43.1", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936})";

inline const std::string kQwen2_7b = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
  "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
  "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
  "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.37.2", "use_cache": true, "use_mrope": false,
  "use_sliding_window": false, "vocab_size": 152064})";

inline const std::string kMistral_7b_v03 = R"({
  "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.0",
  "use_cache": true, "vocab_size": 32768})";

inline const std::string kSmolLm2_135m = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576,
  "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": true,
  "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
  "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
  "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152})";

inline const std::string kQwen3_8b = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
  "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
  "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

inline const std::string kGemma_7b = R"({
  "architectures": ["GemmaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
  "hidden_activation": null, "hidden_size": 3072, "initializer_range": 0.02,
  "intermediate_size": 24576, "max_position_embeddings": 8192, "model_type": "gemma",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 16,
  "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000.0,
  "torch_dtype": "bfloat16", "transformers_version": "4.38.0.dev0", "use_cache": true,
  "vocab_size": 256000})";

inline const std::string kGemma2_2b = R"({
  "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid",
  "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
  "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
  "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
  "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
  "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0,
  "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
  "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.42.4",
  "use_cache": true, "vocab_size": 256000})";

inline const std::string kGemma3_12b = R"({
  "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
  "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144,
  "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3",
  "text_config": {"hidden_size": 3840, "intermediate_size": 15360,
    "model_type": "gemma3_text", "num_attention_heads": 16, "num_hidden_layers": 48,
    "num_key_value_heads": 8, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024},
  "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
  "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
    "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
    "patch_size": 14, "vision_use_head": false}})";

inline const std::string kPhi3_mini = R"({
  "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"],
  "attention_dropout": 0.0,
  "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config",
    "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
  "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu",
  "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 32,
  "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0,
  "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 2047,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.40.2",
  "use_cache": true, "attention_bias": false, "vocab_size": 32064})";

inline const std::string kPhi4 = R"({
  "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 100257, "embd_pdrop": 0.0, "eos_token_id": 100265, "hidden_act": "silu",
  "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 17920,
  "max_position_embeddings": 16384, "model_type": "phi3", "num_attention_heads": 40,
  "num_hidden_layers": 40, "num_key_value_heads": 10,
  "original_max_position_embeddings": 16384, "pad_token_id": 100349, "resid_pdrop": 0.0,
  "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 250000, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.47.0",
  "use_cache": true, "vocab_size": 100352})";

inline const std::string kSmolLm3_3b = R"({
  "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 65536,
  "max_window_layers": 28, "mlp_bias": false, "model_type": "smollm3", "no_rope_layer_interval": 4,
  "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
  "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 5000000.0,
  "sliding_window": null, "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0",
  "use_cache": false, "use_sliding_window": false, "vocab_size": 128256})";

inline const std::string kOlmo2_7b = R"({
  "architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
  "model_type": "olmo2", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 500000, "tie_word_embeddings": false,
  "torch_dtype": "float32", "transformers_version": "4.47.0.dev0", "use_cache": false,
  "vocab_size": 100352})";

inline const std::string kGranite33_8b = R"({
  "architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attention_multiplier": 0.0078125, "bos_token_id": 0, "embedding_multiplier": 12.0,
  "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 12800, "logits_scaling": 16.0, "max_position_embeddings": 131072,
  "mlp_bias": false, "model_type": "granite", "num_attention_heads": 32,
  "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
  "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 10000000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.49.0", "use_cache": true, "vocab_size": 49159})";

// Those below have the fields that matter here.
inline const std::string kMistral_7b_v01 = R"({
  "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
  "tie_word_embeddings": false, "vocab_size": 32000})";

// As many factors as Phi-3.5 and Phi-4-mini have, of values that are none of theirs.
inline std::string LongRopeOf48() {
  std::string short_factor = "1.0", long_factor = "1.0";
  for (int i = 1; i < 48; ++i) {
    short_factor += ", " + std::to_string(1 + 0.01 * i);
    long_factor += ", " + std::to_string(1 + 0.25 * i);
  }
  return R"("rope_scaling": {"type": "longrope", "short_factor": [)" + short_factor +
         R"(], "long_factor": [)" + long_factor + "]}";
}

inline const std::string kPhi35_mini = R"({
  "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "hidden_act": "silu",
  "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
  "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": false,
  "vocab_size": 32064, )" + LongRopeOf48() +
                                       "}";

inline const std::string kPhi4_mini = R"({
  "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "hidden_act": "silu",
  "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
  "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "original_max_position_embeddings": 4096,
  "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "sliding_window": 262144, "tie_word_embeddings": true, "vocab_size": 200064, )" +
                                      LongRopeOf48() + "}";

inline const std::string kOlmo3_7b = R"({
  "architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "hidden_act": "silu",
  "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 65536,
  "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 32, "rms_norm_eps": 1e-06,
  "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
    "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"},
  "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false,
  "vocab_size": 100278})";

// Mistral Small 3.1.
inline const std::string kMistral3_24b = R"({
  "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10,
  "model_type": "mistral3", "multimodal_projector_bias": false, "projector_hidden_act": "gelu",
  "spatial_merge_size": 2,
  "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 32768, "max_position_embeddings": 131072,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0,
    "sliding_window": null, "vocab_size": 131072},
  "vision_config": {"head_dim": 64, "hidden_size": 1024, "intermediate_size": 4096,
    "model_type": "pixtral", "num_attention_heads": 16, "num_hidden_layers": 24,
    "patch_size": 14},
  "vision_feature_layer": -1})";

// Two layers of hidden size 8: small enough to write its weights in a test.
inline const std::string kTiny = R"({
  "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12,
  "max_position_embeddings": 64, "model_type": "llama", "num_attention_heads": 2,
  "num_hidden_layers": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-06,
  "tie_word_embeddings": true, "vocab_size": 16})";

}  // namespace lorad::storage
