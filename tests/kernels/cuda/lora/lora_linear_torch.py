"""The peer of lora_linear_benchmark: LoRA linears written in torch, as CUDA graphs, on the same shapes.

For each shape: forward and backward of the frozen linear, of one adapter (as PEFT computes it), and of
several adapters in a loop over row ranges; ratios over the frozen linear of the same run.
"""

import torch
import torch.nn.functional as F

TOKENS = 8192
RANK = 16
RUNS = 20


def milliseconds(step):
    """Median time of one replay of `step`."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(RUNS + 3):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[3:])[RUNS // 2]


def random(rows, columns, size=1.0, grad=False):
    values = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * size
    return values.requires_grad_(grad)


def lora(x, w, a, b, dropout):
    return F.linear(x, w) + 2.0 * F.linear(F.linear(F.dropout(x, dropout), a), b)


def measure(inputs, outputs, adapters, dropout):
    x = random(TOKENS, inputs, grad=True)
    dy = random(TOKENS, outputs)
    w = random(outputs, inputs, 0.02)
    a = [random(RANK, inputs, 0.02, True) for _ in range(adapters)]
    b = [random(outputs, RANK, 0.02, True) for _ in range(adapters)]

    def frozen():
        torch.autograd.grad(F.linear(x, w), (x,), dy)

    def trained():
        parts = [lora(p, w, a[i], b[i], dropout) for i, p in enumerate(x.chunk(adapters))]
        torch.autograd.grad(torch.cat(parts) if adapters > 1 else parts[0], (x, *a, *b), dy)

    base, time = milliseconds(frozen), milliseconds(trained)
    print(f"{inputs}x{outputs}, {adapters} adapters, dropout {dropout}: "
          f"frozen {1000 * base:.0f} us, torch {1000 * time:.0f} us, ratio {time / base:.3f}",
          flush=True)


def main():
    print("torch", torch.__version__, torch.cuda.get_device_name(), flush=True)
    for inputs, outputs in ((4096, 4096), (4096, 14336), (14336, 4096)):
        for adapters, dropout in ((1, 0.0), (4, 0.0), (16, 0.0), (4, 0.1)):
            measure(inputs, outputs, adapters, dropout)


if __name__ == "__main__":
    main()
