"""FLOPs that a token of a training step needs, from a model's config.json: what speeds of unlike models are compared by.

Counted are the products with frozen weights, forward and by their inputs (2 + 2 FLOPs a weight), the head with them, and
attention's products of causal scores (forward 2, backward 5). Adapters, norms and what is computed again are not. A
window is taken for every layer's.
"""


def attended(length, window):
    """Keys that a query of a sequence sees, in the mean."""
    if not window or window >= length:
        return (length + 1) / 2
    return (window * (window + 1) / 2 + (length - window) * window) / length


def flops_per_token(config, length):
    hidden, features, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    head_size = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries = head_size * config["num_attention_heads"]
    keys = head_size * config["num_key_value_heads"]
    weights = layers * (hidden * (queries + 2 * keys) + queries * hidden + 3 * hidden * features) + hidden * config["vocab_size"]
    pairs = layers * attended(length, config.get("sliding_window"))
    return 4 * weights + 7 * 2 * queries * pairs
