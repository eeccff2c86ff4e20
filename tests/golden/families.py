"""The small models of the reference runs: for each family a config whose features are unlike each other, so that a feature
that is left out or taken for another one shows in the first loss (peft_runs.py makes the runs)."""

SHARED = {"vocab_size": 192, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
          "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False, "bos_token_id": 1,
          "eos_token_id": 2, "pad_token_id": 0}
GEMMA = SHARED | {"head_dim": 32, "tie_word_embeddings": True}
GEMMA3 = GEMMA | {
    "num_hidden_layers": 4, "query_pre_attn_scalar": 24, "sliding_window": 16, "num_key_value_heads": 1,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}
MISTRAL = SHARED | {"head_dim": 32, "sliding_window": 16, "rope_theta": 1000.0}
# Twelve of sixteen features are turned: six factors of each length.
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 32,
            "short_factor": [1.0, 1.1, 1.25, 1.5, 1.75, 2.0], "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0]}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
        "beta_fast": 8.0, "beta_slow": 1.0}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
          "patch_size": 16}

# name -> (class of the config, class of the model, fields)
FAMILIES = {
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", SHARED | {"head_dim": 32, "rope_theta": 1000.0}),
    "qwen3_yarn": ("Qwen3Config", "Qwen3ForCausalLM", SHARED | {"head_dim": 16, "rope_parameters": YARN}),
    "mistral_window": ("MistralConfig", "MistralForCausalLM", MISTRAL),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", GEMMA | {"num_key_value_heads": 1}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", GEMMA | {
        "query_pre_attn_scalar": 24, "sliding_window": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", GEMMA3),
    "gemma3_tower": ("Gemma3Config", "Gemma3ForConditionalGeneration", {
        "text_config": GEMMA3, "vision_config": VISION, "mm_tokens_per_image": 4, "image_token_index": 191}),
    "mistral3_tower": ("Mistral3Config", "Mistral3ForConditionalGeneration", {
        "text_config": MISTRAL | {"model_type": "mistral", "sliding_window": None}, "image_token_index": 191,
        "tie_word_embeddings": False, "vision_config": VISION | {"model_type": "pixtral", "head_dim": 16}}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", SHARED | {
        "original_max_position_embeddings": 32, "partial_rotary_factor": 0.75, "rope_parameters": LONGROPE}),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", SHARED | {
        "no_rope_layers": [1, 0, 1], "rope_theta": 1000.0, "tie_word_embeddings": True}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", SHARED | {"rope_theta": 1000.0}),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM", SHARED | {
        "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}),
    "granite": ("GraniteConfig", "GraniteForCausalLM", SHARED | {
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.4, "logits_scaling": 2.5,
        "tie_word_embeddings": True, "rope_theta": 1000.0}),
}
