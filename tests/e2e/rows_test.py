"""What becomes of rows, through the command line: skipped and named, all tokens, marks, and turns that a template rewrites.

usage: rows_test.py [TEST ...]
"""

import csv
import ctypes
import gzip
import json
import re

from formats import write_model
from house import GOLDEN, House, main, tell

# Qwen3's way: a thought stays in the last answer alone.
THINKING = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}({{ m.reasoning_content }}){% endif %}"
            "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
MARKED = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
          "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def zstd_of(data):
    """Packed by the library that lora itself links: Python's has no zstd."""
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
    library.ZSTD_compress.restype = ctypes.c_size_t
    out = ctypes.create_string_buffer(len(data) + 1024)
    size = library.ZSTD_compress(out, len(out), data, len(data), 3)
    return out.raw[:size]


def turns(*contents, **more):
    return [{"role": ("user", "assistant")[i % 2], "content": content, **(more if i % 2 else {})} for i, content in enumerate(contents)]


def job_of(model, dataset, **training):
    return {"base_model": model, "training_dataset": dataset, "adapter": {"rank": 2},
            "training": {"epochs": 1, "batch_size": 2, "max_length": 64, **training}}


def test_rows_without_a_trained_token():
    """All are named, in the error of a job too; SKIP leaves them out and counts them."""
    with House() as house:
        house.lora("model", "add", "tiny", "--path", write_model(house.folder / "tiny", tokenizer=True))
        long = [{"prompt": "a" * 80, "completion": "b"}]
        good = [{"prompt": "a", "completion": "b"}]
        rows = write_rows(house.folder / "rows.jsonl", long * 25 + good * 3 + long)
        house.lora("dataset", "add", "rows", rows)
        refused = house.run("dataset", "validate", rows, "--model", "tiny", "--max-length", "64")
        assert refused.status == 1
        for line in (*range(1, 26), 29):
            assert f"line {line}:" in refused.err, f"line {line} is not named:\n{refused.err}"
        assert "in line 1-25, 29 (--overflow SKIP" in refused.err, refused.err
        refused = house.run("submit", "-f", "-", "--validate-only", stdin=json.dumps(job_of("tiny", "rows")))
        assert "INVALID_ROWS" in refused.err and "in line 1-25, 29 (training.overflow = SKIP" in refused.err, refused.err

        (report,) = house.objects("dataset", "validate", rows, "--model", "tiny", "--max-length", "64", "--overflow", "skip")
        assert (report["rows"], report["sequences"], report["skipped_rows"]) == (29, 3, 26), report
        job = house.submit(job_of("tiny", "rows", overflow="SKIP"))
        (shown,) = house.wait([job])
        assert (shown["state"], shown["total_steps"], shown["skipped_rows"], shown["sequences"]) == ("SUCCEEDED", 2, 26, 3), shown
        wrong = house.run("dataset", "validate", rows, "--model", "tiny", "--overflow", "DROP")
        assert wrong.status != 0 and "TRUNCATE, ERROR or SKIP, got DROP" in wrong.err, wrong
    house.clear()


def test_a_template_that_is_given():
    """It goes before the directory's; each template has rows and sequences of its own."""
    with House() as house:
        path = write_model(house.folder / "tiny", tokenizer=True)
        for name, text in {"thinking": THINKING, "marked": MARKED, "wrong": "{{ x | sha1 }}"}.items():
            (house.folder / f"{name}.jinja").write_text(text)
        house.lora("model", "add", "plain", "--path", path)
        for name in ("thinking", "marked"):
            house.lora("model", "add", name, "--path", path, "--chat-template", house.folder / f"{name}.jinja")
        refused = house.run("model", "add", "wrong", "--path", path, "--chat-template", house.folder / "wrong.jinja")
        assert "TEMPLATE_UNSUPPORTED" in refused.err and "filter 'sha1'" in refused.err, refused
        (shown,) = house.objects("model", "show", "thinking")
        assert shown["chat_template"] == THINKING and shown["has_chat_template"]
        assert all(not model["chat_template"] for model in house.objects("model", "ls"))

        rows = write_rows(house.folder / "rows.jsonl", [{"messages": turns("a", "b", "c", "d", reasoning_content="t")}, {"messages": turns("e", "f")}])
        house.lora("dataset", "add", "rows", rows)
        texts = {}
        for name in ("plain", "thinking", "marked"):
            *printed, report = house.objects("dataset", "validate", rows, "--model", name, "--print-rows", "0:2")
            texts[name] = [(row["row"], row["sequence"], row["text"].count("(t)")) for row in printed]
            assert report["rows"] == 2 and report["sequences"] == len(printed)
        assert texts["plain"] == texts["marked"] == [(0, 0, 0), (1, 0, 0)], texts
        assert texts["thinking"] == [(0, 0, 1), (0, 1, 1), (1, 0, 0)], texts
        jobs = house.wait([house.submit(job_of(name, "rows", batch_size=1)) for name in texts])
        counts = {job["base_model"]: (job["state"], job["total_steps"], job["sequences"]) for job in jobs}
        assert counts == {"plain": ("SUCCEEDED", 2, 2), "marked": ("SUCCEEDED", 2, 2), "thinking": ("SUCCEEDED", 3, 3)}, counts

        # They outlive a restart, as what their rows are rendered by.
        house.stop()
        house.start()
        *printed, _ = house.objects("dataset", "validate", rows, "--model", "thinking", "--print-rows", "0:1")
        assert len(printed) == 2
    house.clear()


def test_all_tokens():
    with House() as house:
        house.lora("model", "add", "tiny", "--path", write_model(house.folder / "tiny", tokenizer=True))
        rows = write_rows(house.folder / "rows.jsonl", [{"messages": turns("a", "b")}, {"messages": turns("c", "d", "e", "f", weight=0)}])
        (report,) = house.objects("dataset", "validate", rows, "--model", "tiny", "--train-on", "ALL")
        assert report["trained_tokens"] == report["tokens"] - 2, report  # all but the first of each
        printed = house.lora("dataset", "validate", rows, "--model", "tiny", "--train-on", "ALL", "--print-rows", "0:2").out
        assert sum(map(int, re.findall(r"tokens, (\d+) trained", printed))) == report["trained_tokens"], printed
        for row in house.objects("dataset", "validate", rows, "--model", "tiny", "--train-on", "ALL", "--print-rows", "0:2")[:-1]:
            assert row["labels"] == [-100, *row["input_ids"][1:]], row
        for wrong in ("2:1", "x", "1"):
            assert house.run("dataset", "validate", rows, "--model", "tiny", "--print-rows", wrong).status == 2, wrong
        refused = house.run("dataset", "validate", rows, "--model", "tiny")
        assert refused.status == 1 and "line 2: no token of the row is trained on" in refused.err, refused
        house.lora("dataset", "add", "rows", rows)
        (job,) = house.wait([house.submit(job_of("tiny", "rows", train_on="ALL"))])
        assert job["state"] == "SUCCEEDED", job
        (step,) = house.objects("metrics", job["name"])
        assert step["trained_tokens"] == report["trained_tokens"], step
        tell(f"    {step['trained_tokens']} tokens trained")
    house.clear()


def test_as_trl():
    """Ids and labels of TRL's SFTTrainer with the tests' own tokenizer (tests/golden/trl/own_rows.py made them)."""
    header, *expected = map(json.loads, (GOLDEN / "trl/own_rows.jsonl").read_text().splitlines())
    with House(None, "--workers", "none") as house:
        (house.folder / "marked.jinja").write_text(header["chat_template"])
        house.lora("model", "add", "tiny", "--path", write_model(house.folder / "tiny", tokenizer=True), "--chat-template", house.folder / "marked.jinja")
        runs = {}
        for row in expected:
            runs.setdefault((row["kind"], row["mask"], row["max_length"]), []).append(row)
        skipped = 0
        for (kind, mask, max_length), wanted in runs.items():
            rows = write_rows(house.folder / "rows.jsonl", header["rows"][kind])
            *ours, report = house.objects("dataset", "validate", rows, "--model", "tiny", "--max-length", max_length, "--overflow", "SKIP",
                                          "--train-on", mask, "--print-rows", "0:100")
            assert len(ours) == len(wanted), f"{kind} {mask} {max_length}: {len(ours)} rows, TRL has {len(wanted)}"
            for row, want in zip(ours, wanted):
                labels = [-100] * len(want["input_ids"])
                for begin, end in want["trained"]:
                    labels[begin:end] = want["input_ids"][begin:end]
                assert row["input_ids"] == want["input_ids"], f"{kind} {mask} {max_length}: row {row['row']}: other ids than TRL's"
                assert row["labels"][1:] == labels[1:], f"{kind} {mask} {max_length}: row {row['row']}: other labels than TRL's"
            skipped += report["skipped_rows"]
        assert skipped == 3, f"{skipped} rows were left out"
        tell(f"    {len(expected)} sequences as TRL's")
    house.clear()


def test_other_formats():
    """CSV, TSV, JSON arrays, packed and from standard input, have the hash of the JSON Lines."""
    rows = [{"question": f"Janet\u2019s {i} ducks, \"why\"?\nTell.", "answer": f"{i} / 2\t#### {i}"} for i in range(500)]
    with House(None, "--workers", "none") as house:
        lines = write_rows(house.folder / "rows.jsonl", rows)
        files = {}
        for name, separator in (("csv", ","), ("tsv", "\t")):
            files[name] = house.folder / f"rows.{name}"
            with files[name].open("w", newline="") as out:
                writer = csv.DictWriter(out, ["question", "answer"], delimiter=separator)
                writer.writeheader()
                writer.writerows(rows)
        for name, indent in (("array", None), ("indented", 2)):
            files[name] = house.folder / f"{name}.json"
            files[name].write_text(json.dumps(rows, indent=indent))
        files["packed"] = house.folder / "rows.csv.gz"
        files["packed"].write_bytes(gzip.compress(files["csv"].read_bytes()))
        files["zstd"] = house.folder / "rows.csv.zst"
        files["zstd"].write_bytes(zstd_of(files["csv"].read_bytes()))
        columns = ("--columns", "prompt=question,completion=answer")
        renamed = write_rows(house.folder / "renamed.jsonl", [{"prompt": r["question"], "completion": r["answer"]} for r in rows])
        (right,) = house.objects("dataset", "add", "renamed", renamed)
        for name, path in {**files, "lines2": lines}.items():
            (added,) = house.objects("dataset", "add", f"by-{name}", path, *columns)
            assert (added["sha256"], added["rows"]) == (right["sha256"], 500), (name, added)
        (piped,) = house.lora("dataset", "add", "piped", "-", "--format", "csv", *columns, "--json", stdin=files["csv"].read_text()).objects()
        assert piped["sha256"] == right["sha256"], piped
        ragged = house.run("dataset", "add", "ragged", "-", "--format", "csv", stdin="prompt,completion\na,b\na\n")
        assert ragged.status == 1 and "BAD_ROWS_FILE: standard input: line 3: has 1 fields, the header has 2" in ragged.err, ragged
        assert house.run("dataset", "show", "ragged").status != 0
    house.clear()


def test_warnings_and_a_share_of_warm_up():
    """What is likely not meant is told by submit, estimate, show, events and validate; a ratio is steps once they are known."""
    with House() as house:
        house.lora("model", "add", "tiny", "--path", write_model(house.folder / "tiny", tokenizer=True))
        rows = write_rows(house.folder / "rows.jsonl", [{"text": "a" * 80}] * 6 + [{"text": "ab"}] * 4)
        house.lora("dataset", "add", "rows", rows)
        cut = "training_dataset: 6 of 10 sequences are cut at training.max_length 64"
        large = "training.batch_size: is 16, and training_dataset makes 10 sequences: each step trains on all of them"
        careless = house.folder / "careless.json"
        careless.write_text(json.dumps(job_of("tiny", "rows", batch_size=16)))
        for command in (("submit", "--validate-only"), ("estimate",)):
            told = house.lora(*command, "-f", careless)
            assert told.err.splitlines()[-2:] == [f"warning: {cut}", f"warning: {large}"], told
            assert "warning" not in told.out, told
            told = house.lora(*command, "-f", careless, "--json")
            assert told.objects()[0]["warnings"] == [cut, large] and told.err == "", told
        job = house.lora("submit", "-f", careless).out.strip()
        (shown,) = house.wait([job])
        assert shown["warnings"] == [cut, large], shown
        told = house.lora("show", job).out
        assert told.count("\nwarning ") == 2 and re.search(r"\ntruncated rows +6, cut at 64 tokens\n", told), told
        assert f"its rows are good; {cut}; {large}" in [event["message"] for event in house.objects("events", job)]
        told = house.lora("dataset", "validate", rows, "--model", "tiny", "--max-length", "64")
        assert told.err == "warning: 6 of 10 sequences are cut at this --max-length\n", told
        told = house.lora("dataset", "validate", rows, "--model", "tiny", "--max-length", "96")
        assert told.err == "", told

        yaml = "base_model: tiny\ntraining_dataset: rows\nadapter: {r: 2}\ntraining:\n  num_train_epochs: 3\n  max_length: 96\n" \
               "  per_device_train_batch_size: 2\n  learning_rate: 1e-3\n  warmup_ratio: 0.25\n"
        told = house.lora("submit", "-f", "-", "--format", "yaml", stdin=yaml)
        assert told.err == "", told
        (shown,) = house.wait([told.out.strip()])
        assert (shown["total_steps"], shown["training"]["warmup_steps"], shown["training"]["warmup_ratio"]) == (15, 4, 0), shown
        rates = [step["learning_rate"] for step in house.objects("metrics", shown["name"])]
        wanted = [1e-3 * (t / 4 if t < 4 else (15 - t) / 11) for t in range(15)]  # transformers' linear schedule
        assert len(rates) == 15 and all(abs(a - b) < 1e-12 for a, b in zip(rates, wanted)), rates
        # As it is shown it is taken again, with the same steps.
        fields = ("base_model", "training_dataset", "adapter", "training")
        again = {name: shown[name] for name in fields}
        again["adapter"].pop("modules")
        (checked,) = house.lora("submit", "-f", "-", "--validate-only", "--json", stdin=json.dumps(again)).objects()
        assert checked["training"] == shown["training"], checked
        both = house.run("submit", "-f", "-", "--format", "yaml", stdin=yaml + "  warmup_steps: 4\n")
        assert both.status == 1 and "training.warmup_ratio: stands in the place of warmup_steps; leave one out" in both.err, both
    house.clear()


if __name__ == "__main__":
    main([test_warnings_and_a_share_of_warm_up, test_rows_without_a_trained_token, test_a_template_that_is_given, test_all_tokens, test_as_trl, test_other_formats])
