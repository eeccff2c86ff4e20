"""FLOPs of a step against sums written out by hand."""

from step_flops import attended, flops_per_token

SMALL = {"hidden_size": 4, "intermediate_size": 10, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
         "vocab_size": 20}


def test_keys_that_are_seen():
    for length in (1, 5, 16, 17):
        for window in (None, 1, 4, 16, 17, 40):
            seen = [min(row + 1, window or length) for row in range(length)]
            assert abs(attended(length, window) - sum(seen) / length) < 1e-12, (length, window)


def test_of_a_small_model():
    # q, k, v, o; gate, up and down; the head.
    weights = 3 * (4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 10) + 4 * 20
    assert flops_per_token(SMALL, 1) == 4 * weights + 14 * 3 * 4
    assert flops_per_token(SMALL, 7) == 4 * weights + 14 * 3 * 4 * 4
    # A head may be larger than its share of the row.
    wide = 3 * (4 * 6 + 2 * 4 * 3 + 6 * 4 + 3 * 4 * 10) + 4 * 20
    assert flops_per_token(SMALL | {"head_dim": 3}, 1) == 4 * wide + 14 * 3 * 6


test_keys_that_are_seen()
test_of_a_small_model()
