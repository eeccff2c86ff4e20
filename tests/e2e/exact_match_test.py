"""SmolLM2's answers to rows of GSM8K before and after the quick start's adapters, by `lora evaluate` and by transformers and
PEFT: the same texts, and as many right. It is skipped where tools/references was never run. In short by itself; more by hand,
with the adapters that tools/quickstart left (every token runs its prefix again, so many tokens take long):

usage: exact_match_test.py [rows=N] [tokens=N] [adapters=.cache/quickstart]
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import python_package
from house import GOLDEN, House, ROOT, main, tell

SAID = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
ROWS, TOKENS = int(SAID.get("rows", 2)), int(SAID.get("tokens", 24))
STEPS = 2  # of the quick start's jobs, where it has left no adapters
ANSWER = "#### (.*)"
MODEL = "smollm2-135m"


def train_quick_start(house):
    """The adapters of the quick start's jobs, cut short: {name: directory}."""
    house.lora("dataset", "add", "gsm8k-train", ROOT / "examples/data/gsm8k_train.jsonl")
    jobs = {}
    for path in sorted((ROOT / "examples/quickstart").glob("job-*.json")):
        job = json.loads(path.read_text())
        del job["validation_dataset"]
        job["training"] |= {"max_steps": STEPS, "warmup_steps": 0}
        jobs[job["display_name"]] = house.submit(job)
    house.wait(jobs.values())
    return {name: house.adapter(job) for name, job in jobs.items()}


def write_rows(path):
    """The test rows whose own answers are shortest; what is right."""
    lines = (ROOT / "examples/data/gsm8k_test.jsonl").read_text().splitlines()
    answers = [json.loads(line)["messages"][-1]["content"] for line in lines]
    chosen = sorted(sorted(range(len(lines)), key=lambda i: len(answers[i]))[:ROWS])
    assert len(chosen) == ROWS, f"there are {len(lines)} rows"
    path.write_text("".join(lines[i] + "\n" for i in chosen))
    return [re.search(ANSWER, answers[i])[1] for i in chosen]


def evaluate(house, source):
    """The rows' lines and the last one, of all."""
    began = time.monotonic()
    *rows, total = house.lora("evaluate", source, "--dataset", "gsm8k-test", "--exact-match", ANSWER, "--limit", ROWS,
                              "--max-tokens", TOKENS, "--timeout", 86400, "--json", seconds=86400).objects()
    assert len(rows) == total["rows"] == ROWS and total["without_reference"] == total["not_asked"] == 0, total
    return rows, total, time.monotonic() - began


def by_transformers(model, adapters, rows):
    """The same answers, a list for each adapter."""
    done = subprocess.run([python_package.references(), GOLDEN / "exact_match.py", model, rows, str(TOKENS), *adapters],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(adapters) * ROWS
    return [answers[i:i + ROWS] for i in range(0, len(answers), ROWS)]


def right(text, answer):
    found = re.search(ANSWER, text)
    return found is not None and found[1] == answer


def compare(source, rows, total, theirs, expected):
    """Every answer is transformers', or, which is counted, what that would have said where two tokens were TIE apart."""
    ties = 0
    for row, want, answer in zip(rows, theirs, expected, strict=True):
        tie = next((tie for tie in want["ties"] if tie["text"] == row["answer"] != want["text"]), None)
        if tie:
            tell(f"    {source}, row {row['row']}: another answer, where two tokens were {tie['gap']:.1e} apart")
            ties += 1
        else:
            assert row["answer"] == want["text"], f"{source}, row {row['row']}: {row['answer']!r}, transformers' is {want['text']!r}"
        assert (row["expected"], row["right"]) == (answer, right(row["answer"], answer)), (source, row)
    assert total["right"] == sum(row["right"] for row in rows)
    return ties


def test_the_same_answers():
    python_package.references()
    fetch = (ROOT / "tools/fetch-smollm2").resolve()
    model = subprocess.run([fetch], check=True, stdout=subprocess.PIPE, text=True,
                           env={**os.environ, "HOME": os.path.expanduser("~")}).stdout.strip()
    with House() as house:
        house.lora("model", "add", MODEL, "--path", model)
        rows = house.folder / "asked.jsonl"
        expected = write_rows(rows)
        house.lora("dataset", "add", "gsm8k-test", rows)
        left = SAID.get("adapters")
        adapters = {path.name: path for path in sorted(pathlib.Path(left).iterdir())} if left else train_quick_start(house)
        assert len(adapters) == 4, f"the quick start has left {sorted(adapters)}"
        for name, path in adapters.items():
            house.lora("adapter", "import", name, "--path", path)
        sources = [MODEL, *(f"{MODEL}+{name}" for name in adapters)]
        with concurrent.futures.ThreadPoolExecutor(len(sources)) as pool:
            ours = list(pool.map(lambda source: evaluate(house, source), sources))
        house.stop()
        began = time.monotonic()
        theirs = by_transformers(model, ["-", *map(str, adapters.values())], rows)
        tell(f"    {len(sources) * ROWS} answers of up to {TOKENS} tokens: {max(seconds for _, _, seconds in ours):.0f} s, and "
             f"transformers {time.monotonic() - began:.0f} s")
        for source, (answers, total, _), reference in zip(sources, ours, theirs):
            ties = compare(source, answers, total, reference, expected)
            by_theirs = sum(right(want["text"], answer) for want, answer in zip(reference, expected))
            tell(f"    {source}: {total['right']} of {ROWS} right, by transformers {by_theirs}; {ROWS - ties} of {ROWS} answers the same, "
                 f"of {sum(answer['tokens'] for answer in reference)} tokens; two were {min(a['least_gap'] for a in reference):.1e} apart")
        texts = {json.dumps([row["answer"] for row in answers]) for answers, _, _ in ours}
        assert len(texts) > 1, "the adapters change no answer: nothing was compared with them"
    house.clear()


if __name__ == "__main__":
    main([test_the_same_answers])
