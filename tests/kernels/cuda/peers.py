"""What torch takes for the operations that attention_benchmark and linear_loss_benchmark time: its
flash attention, and head and loss as transformers computes them (bf16 logits widened to float32)."""

import torch


def median_ms(call, rounds=7):
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[rounds // 2]


def head_and_loss(rows, vocabulary, hidden):
    x = torch.randn(rows, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(vocabulary, hidden, device="cuda", dtype=torch.bfloat16) * 4 / hidden**0.5
    targets = torch.randint(vocabulary, (rows,), device="cuda")
    gradient = torch.randn(rows, vocabulary, device="cuda", dtype=torch.bfloat16) * 0.01

    def loss():
        x.grad = None
        logits = (x @ weight.T).float()
        torch.nn.functional.cross_entropy(logits, targets, reduction="sum").backward()

    def products():
        torch.mm(x.detach(), weight.T)
        torch.mm(gradient, weight)

    print(f"{rows} rows, V {vocabulary}, H {hidden}: torch head + loss {median_ms(loss):.3f} ms, "
          f"its two products alone {median_ms(products):.3f} ms")


def attention(sequences, rows, heads, kv_heads, head_size):
    def tensor(count):
        return torch.randn(sequences, count, rows, head_size, device="cuda",
                           dtype=torch.bfloat16, requires_grad=True)

    q, k, v = tensor(heads), tensor(kv_heads), tensor(kv_heads)
    dout = torch.randn_like(q)

    def both():
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True)
        torch.autograd.grad(out, (q, k, v), dout)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        print(f"{sequences} x {rows}, N {heads} G {kv_heads} D {head_size}: "
              f"torch flash attention, forward + backward {median_ms(both):.3f} ms")


if __name__ == "__main__":
    print(torch.__version__, torch.cuda.get_device_name())
    head_and_loss(4096, 128256, 4096)
    head_and_loss(8192, 32000, 2048)
    for shape in [(64, 128), (16, 512), (8, 1024), (4, 2048), (1, 8192)]:
        attention(*shape, 32, 8, 128)
    attention(8, 1024, 32, 4, 64)
