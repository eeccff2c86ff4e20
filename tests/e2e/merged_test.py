"""lora checkpoint get --merged: a model directory of its own, cut off and taken up again, onto a full disk, of a base that changed.

usage: merged_test.py [TEST ...]
"""

import json
import os
import shutil
import signal
import struct
import subprocess
import time

from formats import read_safetensors, write_model
from house import GOLDEN, House, main, tell

MODEL = GOLDEN / "llama_gqa_untied/model"
ROWS = GOLDEN / "llama_gqa_untied/r8_all/train.jsonl"


def train(house, path, **adapter):
    house.lora("model", "add", "base", "--path", path)
    house.lora("dataset", "add", "rows", ROWS)
    job = house.submit({"base_model": "base", "training_dataset": "rows",
                        "adapter": {"rank": 4, "alpha": 64, "target_modules": ["q_proj", "down_proj"], **adapter},
                        "training": {"max_steps": 4, "batch_size": 3, "max_length": 256, "learning_rate": 1e-2, "checkpoint_every_steps": 2}})
    house.wait([job])
    return job


def merged_by_hand(weights, adapter, scale):
    """W + s B A of every matrix that the adapter has, in Python's float64."""
    for key, (shape, a) in adapter.items():
        if ".lora_A." not in key:
            continue
        name = key.removeprefix("base_model.model.").replace(".lora_A.", ".")
        rank, wide = shape
        (tall, _), b = adapter[key.replace("lora_A", "lora_B")]
        values = weights[name][1]
        for i in range(tall):
            for j in range(wide):
                values[i * wide + j] += scale * sum(b[i * rank + k] * a[k * wide + j] for k in range(rank))
    return weights


def test_merged():
    with House() as house:
        job = train(house, MODEL)
        house.lora("checkpoint", "get", job, "-o", house.folder / "adapter")
        house.lora("checkpoint", "get", job, "--merged", "-o", house.folder / "merged")
        assert sorted(p.name for p in (house.folder / "merged").iterdir()) == sorted(p.name for p in MODEL.iterdir())
        assert (house.folder / "merged/config.json").read_bytes() == (MODEL / "config.json").read_bytes()
        expected = merged_by_hand(read_safetensors(MODEL / "model.safetensors"),
                                  read_safetensors(house.folder / "adapter/adapter_model.safetensors"), 64 / 4)
        merged = read_safetensors(house.folder / "merged/model.safetensors")
        base = read_safetensors(MODEL / "model.safetensors")
        changed = 0
        for name, (shape, values) in expected.items():
            assert merged[name][0] == shape
            worst = max(abs(x - y) for x, y in zip(merged[name][1], values))
            assert worst <= 1e-6, f"{name}: {worst}"
            changed += list(merged[name][1]) != list(base[name][1])
        assert changed == 6, f"{changed} matrices changed"

        # It is a model as any other: it trains, and another step is another model.
        house.lora("model", "add", "merged", "--path", house.folder / "merged")
        house.lora("checkpoint", "get", job, "--merged", "--step", "2", "-o", house.folder / "merged-2")
        assert read_safetensors(house.folder / "merged-2/model.safetensors") != merged
        refused = house.run("checkpoint", "get", job, "--merged", "-o", house.folder / "merged")
        assert "DIRECTORY_EXISTS" in refused.err, refused
        refused = house.run("checkpoint", "get", job, "--merged", "--all", "-o", house.folder / "x")
        assert refused.status == 2, refused
    house.clear()


def flip_a_byte(path):
    good = path.read_bytes()
    path.write_bytes(good[:-3] + bytes([good[-3] ^ 1]) + good[-2:])
    return good


def test_a_damaged_adapter():
    """Of a checkpoint or an import: it is found by its manifest, and not merged, asked or trained from."""
    with House() as house:
        job = train(house, MODEL)
        house.lora("checkpoint", "get", job, "-o", house.folder / "adapter")
        house.lora("adapter", "import", "mine", "--path", house.folder / "adapter")
        going_on = {"base_model": "base", "training_dataset": "rows", "adapter": {"init_from": "mine"},
                    "training": {"max_steps": 1, "batch_size": 3, "max_length": 256}}
        path = house.folder / "going_on.json"
        path.write_text(json.dumps(going_on))
        merged = ("checkpoint", "get", job, "--merged", "-o", house.folder / "x")
        [weights] = house.data_dir.glob("adapters/mine-*/adapter_model.safetensors")
        for damaged, call in ((f"checkpoints/{job}/4/adapter_model.safetensors", merged),
                              ("adapters/mine-*/adapter_config.json", ("submit", "-f", path)),
                              ("adapters/mine-*/adapter_config.json", ("generate", "base+mine", "a", "--raw"))):
            [file] = house.data_dir.glob(damaged)
            good = flip_a_byte(file)
            found = house.run(*call)
            assert found.status == 1 and "CHECKPOINT_CORRUPT" in found.err, found
            file.write_bytes(good)
        good = flip_a_byte(weights)
        [failed] = house.wait([house.submit(going_on)], state="FAILED")
        assert failed["error"]["reason"] == "CHECKPOINT_CORRUPT", failed
        weights.write_bytes(good)
        house.wait([house.submit(going_on)])
        house.lora(*merged)
    house.clear()


def test_cut_off():
    """What came before a client was killed is gone on with; so is what came before the daemon was."""
    with House() as house:
        job = train(house, write_model(house.folder / "large", vocabulary=200_000, hidden=32))
        house.lora("checkpoint", "get", job, "--merged", "-o", house.folder / "whole")
        want = (house.folder / "whole/model.safetensors").read_bytes()
        out = house.folder / "cut"

        def partial():
            return sum(p.stat().st_size for p in house.folder.glob("cut.*.partial/*"))

        for cut in ("client", "daemon"):
            command = house.lora_command("checkpoint", "get", job, "--merged", "-o", out)
            client = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            begun = partial()
            while partial() <= begun and client.poll() is None:
                time.sleep(0.001)
            if cut == "client":
                client.send_signal(signal.SIGKILL)
                client.wait()
            else:
                house.kill()
                client.wait()
                house.start()
            assert not out.exists() or client.returncode == 0
        came = partial()
        house.lora("checkpoint", "get", job, "--merged", "-o", out)
        assert (out / "model.safetensors").read_bytes() == want, "other bytes than in one go"
        tell(f"    gone on from {came} of {len(want)} bytes")
    house.clear()


def test_full_disk():
    """Refused by name, and gone on with where there is room."""
    with House() as house:
        job = train(house, write_model(house.folder / "large", vocabulary=100_000, hidden=32))
        out = house.folder / "full"
        limit = 4 << 20  # bytes of one file: to the client the same as a disk that is full
        command = house.lora_command("checkpoint", "get", job, "--merged", "-o", out)
        done = subprocess.run(["bash", "-c", f'ulimit -f {limit >> 10}; trap "" XFSZ; exec "$@"', "-", *map(str, command)],
                              capture_output=True, text=True)
        assert done.returncode == 1 and "FILE_UNWRITABLE" in done.stderr, done
        assert not out.exists()
        house.lora("checkpoint", "get", job, "--merged", "-o", out)
        house.lora("checkpoint", "get", job, "--merged", "-o", house.folder / "whole")
        assert (out / "model.safetensors").read_bytes() == (house.folder / "whole/model.safetensors").read_bytes()
    house.clear()


def test_a_base_that_changed():
    with House() as house:
        path = house.folder / "base"
        shutil.copytree(MODEL, path)
        job = train(house, path)
        weights = path / "model.safetensors"
        good = weights.read_bytes()
        times = weights.stat()
        weights.write_bytes(good[:-4] + struct.pack("<f", 1.0))
        refused = house.run("checkpoint", "get", job, "--merged", "-o", house.folder / "x")
        assert refused.status == 1 and "MODEL_CHANGED" in refused.err, refused
        # Registered again as it is now: it is not what the job was trained on.
        house.lora("model", "rm", "base")
        refused = house.run("checkpoint", "get", job, "--merged", "-o", house.folder / "x")
        assert refused.status == 1 and "there is no model 'base'" in refused.err, refused
        house.lora("model", "add", "base", "--path", path)
        refused = house.run("checkpoint", "get", job, "--merged", "-o", house.folder / "x")
        assert "MODEL_CHANGED" in refused.err and "was trained on other files" in refused.err, refused
        assert not list(house.folder.glob("x*"))
        # The files put back.
        weights.write_bytes(good)
        os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
        house.lora("model", "rm", "base")
        house.lora("model", "add", "base", "--path", path)
        house.lora("checkpoint", "get", job, "--merged", "-o", house.folder / "x")
    house.clear()


if __name__ == "__main__":
    main([test_merged, test_a_damaged_adapter, test_cut_off, test_full_disk, test_a_base_that_changed])
