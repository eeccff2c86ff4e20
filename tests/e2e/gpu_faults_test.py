"""What goes wrong around a GPU: an index that is not there, a model that is too large, memory that others have or take, two
workers on one GPU, a loss that is not finite among neighbours. Skips where there is no GPU.

usage: gpu_faults_test.py [TEST ...]
"""

import contextlib
import json
import math
import random
import subprocess
import sys

from formats import token_rows, write_model, write_safetensors
from gpu_test import DEVICE, has_gpu
from house import ROOT, WORKER, House, main, tell

# Takes all memory of GPU 0 but so many bytes, says so, and holds it until its input ends.
HOLDER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    error = getattr(cuda, name)(*arguments)
    assert error == 0, f"{name}: {error}"
context, pointer, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(free.value - int(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def memory_held(but):
    """Another process has the GPU's memory, but for `but` bytes."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(but)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n", "the memory could not be taken"
        yield
    finally:
        holder.communicate()


def small_job(model="small", **training):
    return {"base_model": model, "training_dataset": "rows",
            "adapter": {"rank": 8, "dropout": 0.1, "target_modules": ["q_proj", "v_proj", "down_proj"]},
            "training": {"max_steps": 30, "batch_size": 4, "max_length": 900, "learning_rate": 1e-3} | training}


def prepare(house):
    house.lora("model", "add", "small", "--path", write_model(house.folder / "model"))
    house.add_dataset("rows", token_rows(random.Random(1), 40))


def adapter_bytes(house, job):
    return (house.adapter(job) / "adapter_model.safetensors").read_bytes()


def test_an_index_that_is_not_there():
    done = subprocess.run([WORKER, "--coordinator", "127.0.0.1:1", "--device", "cuda:63"], capture_output=True, text=True)
    assert done.returncode == 1, done
    assert "there is no GPU 63: this machine has " in done.stdout + done.stderr, done
    house = House(None, "--workers", "cuda:63")
    served = subprocess.run(list(map(str, house.command())), capture_output=True, text=True)
    assert served.returncode != 0 and "NO_SUCH_DEVICE" in served.stderr and "there are cuda:0" in served.stderr, served
    house.clear()


def write_model_larger_than(memory_bytes, directory):
    """Llama's largest shape with as many layers as it takes, a quarter beyond what there is; weights from a seed."""
    subprocess.run([ROOT / "tools/make-model", "llama-3.1-70b", directory], check=True, stdout=subprocess.DEVNULL)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    attention = 2 * hidden * hidden * (heads + config["num_key_value_heads"]) // heads
    layer_bytes = 2 * (attention + 3 * hidden * config["intermediate_size"])  # of bf16
    config["num_hidden_layers"] = math.ceil(1.25 * memory_bytes / layer_bytes)
    path.write_text(json.dumps(config))
    return directory


def test_a_model_larger_than_the_gpu_is_refused_with_the_estimate():
    with House(None, "--workers", DEVICE) as house:
        prepare(house)
        house.wait_for_worker()
        (worker,) = house.objects("worker", "ls")
        house.lora("model", "add", "large", "--path", write_model_larger_than(worker["memory_bytes"], house.folder / "large"))
        job = house.submit(small_job("large"))
        (refused,) = house.wait([job], state="FAILED")
        error = refused["error"]
        assert error["reason"] == "MEMORY_NEVER_FITS" and "(weights " in error["message"], error
        tell(f"    {error['message']}")
    house.clear()


def test_memory_that_others_had_before_the_worker_came():
    with memory_held(but=3 << 30), House(None, "--workers", DEVICE) as house:
        prepare(house)
        house.wait_for_worker()
        (worker,) = [w for w in house.objects("worker", "ls") if w["state"] == "IDLE"]
        assert worker["memory_bytes"] < 3 << 30, worker
        house.wait([house.submit(small_job())])
    house.clear()


def test_memory_that_others_take_from_a_running_worker():
    with House(None, "--workers", DEVICE) as house:
        prepare(house)
        house.wait_for_worker()
        first = house.submit(small_job(max_steps=4000))
        house.wait([first], until=lambda job: job["step"] > 5)
        with memory_held(but=4 << 20):
            (before,) = house.wait([first], until=lambda job: job["state"] == "RUNNING")
            house.wait([first], until=lambda job: job["step"] > before["step"] + 20)
        house.lora("cancel", first)
        house.wait([first], state="CANCELLED")
    house.clear()
    with House(None, "--workers", DEVICE, "--microbatch-tokens", 8192) as house:
        prepare(house)
        house.wait_for_worker()
        with memory_held(but=4 << 20):
            job = house.submit(small_job())
            (waiting,) = house.wait([job], until=lambda job: "lacks memory" in (job["queue"] or {"why": ""})["why"])
            tell(f"    it waits: {waiting['queue']['why']}")
        house.wait([job])
    house.clear()


def test_two_workers_on_one_gpu():
    with House(None, "--workers", "none", "--microbatch-tokens", 1024) as house:
        prepare(house)
        house.lora("model", "add", "other", "--path", write_model(house.folder / "other", seed=2))
        jobs = [house.submit(small_job(model)) for model in ("small", "other")]
        for name in ("one", "two"):
            house.start_worker("--device", DEVICE, "--name", name)
        done = house.wait(jobs)
        assert all(job["attempts"] == 1 for job in done), done
    house.clear()


def write_wild_adapter(directory):
    """Of rank 8 on q_proj of prepare's model: finite itself, but what it computes is not."""
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}))
    values = [1e30] * (8 * 32)
    name = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    write_safetensors(directory / "adapter_model.safetensors",
                      {name.format(i, m): ([8, 32] if m == "A" else [32, 8], values) for i in range(2) for m in "AB"})
    return directory


def test_a_loss_that_is_not_finite_leaves_its_neighbours_their_bits():
    with House(None, "--workers", DEVICE) as house:
        prepare(house)
        alone = house.submit(small_job())
        house.wait([alone])
        want = adapter_bytes(house, alone)
    house.clear()
    with House(None, "--workers", "none", "--microbatch-tokens", 8192) as house:
        prepare(house)
        packed = house.submit(small_job())
        house.lora("adapter", "import", "wild", "--path", write_wild_adapter(house.folder / "wild"))
        wild = house.submit(small_job() | {"adapter": {"rank": 8, "alpha": 8, "target_modules": ["q_proj"], "init_from": "wild"}})
        house.start_worker("--device", DEVICE)
        (failed,) = house.wait([wild], state="FAILED")
        assert failed["error"]["reason"] == "NOT_FINITE", failed["error"]
        tell(f"    {failed['error']['message']}")
        (done,) = house.wait([packed])
        for job in (packed, wild):
            assert "runs in group-1 from step 0" in house.lora("events", job).out, f"{job} was not there from the beginning"
        assert adapter_bytes(house, packed) == want, "the adapter's bytes differ"
    house.clear()


if __name__ == "__main__":
    main([test_an_index_that_is_not_there, test_a_model_larger_than_the_gpu_is_refused_with_the_estimate,
          test_memory_that_others_had_before_the_worker_came, test_memory_that_others_take_from_a_running_worker,
          test_two_workers_on_one_gpu, test_a_loss_that_is_not_finite_leaves_its_neighbours_their_bits],
         lacking=None if has_gpu() else "no GPU")
