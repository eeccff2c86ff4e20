"""Questions to adapters: from the command line, from Python, and beside jobs that train.

usage: generate_test.py [TEST...]
"""

import contextlib
import json
import os
import signal
import subprocess
import time

import python_package
from formats import write_model
from house import House, main

python_package.load()

import lorad  # noqa: E402

# Each is learned by heart: its prompt is one letter, so an adapter can tell them apart by that.
ROWS = [{"prompt": letter, "completion": f"#{i}"} for i, letter in enumerate("abcdefgh")]
TEMPLATE = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


def job_of(dataset="rows", **training):
    return {"base_model": "tiny", "training_dataset": dataset,
            "adapter": {"rank": 16, "alpha": 32, "seed": 1},
            "training": {"max_steps": 300, "batch_size": 8, "max_length": 16, "learning_rate": 1e-2, "schedule": "CONSTANT",
                         "checkpoint_every_steps": 100, **training}}


@contextlib.contextmanager
def house_with_model():
    with House(None, "--workers", "cpu:1") as house:
        model = write_model(house.folder / "tiny", tokenizer=True, positions=256, head=0.5)
        template = house.folder / "template.jinja"
        template.write_text(TEMPLATE)
        house.lora("model", "add", "tiny", "--path", model, "--chat-template", template)
        house.add_dataset("rows", ROWS)
        yield house
    house.clear()


def answer(house, *arguments):
    return house.object("generate", *arguments)


def test_an_adapter_answers_what_it_has_learned():
    with house_with_model() as house:
        job = house.submit(job_of())
        house.wait([job])
        score = house.lora("evaluate", job, "--dataset", "rows", "--exact-match", "#(.)", "--max-tokens", "2")
        assert score.out == "exact match: 8 of 8 right (100 %)\n", score
        assert "8/8 answered" in score.err, score
        # The row's own answer ends where the model's does: before its end-of-text token.
        whole = house.lora("evaluate", job, "--dataset", "rows", "--exact-match", "#(.*)", "--max-tokens", "2")
        assert whole.out == "exact match: 8 of 8 right (100 %)\n", whole
        base = house.lora("evaluate", "tiny", "--dataset", "rows", "--exact-match", "#(.)", "--max-tokens", "2")
        assert base.out.splitlines()[0].split() == ["ROW", "EXPECTED", "GOT"], base
        assert len(base.out.splitlines()) == 1 + 8 + 1 and "0 of 8 right" in base.out, base
        *rows, total = house.objects("evaluate", job, "--dataset", "rows", "--exact-match", "#(.)", "--max-tokens", "2", "--limit", "3")
        assert [row["row"] for row in rows] == [0, 1, 2] and all(row["right"] for row in rows), rows
        assert total == {"rows": 3, "right": 3, "without_reference": 0, "gave_up": 0, "not_asked": 0, "exact_match": 1.0}, total

        plain = house.lora("generate", job, "c", "--raw", "--max-tokens", "2")
        assert (plain.out, plain.err) == ("#2\n", ""), plain
        assert house.lora("generate", job, "-", "--raw", "--max-tokens", "2", stdin="d").out == "#3\n"
        told = answer(house, job, "c", "--raw", "--max-tokens", "9")
        assert told["text"].startswith("#2") and told["step"] == 300 and told["prompt_tokens"] == 1, told
        assert told["completion_tokens"] == len(told["token_ids"]) == len(told["log_probabilities"]), told
        assert all(p <= 1e-6 for p in told["log_probabilities"]), told
        assert told["finish_reason"] == ("EOS" if told["completion_tokens"] < 9 else "LENGTH"), told
        assert answer(house, job, "c", "--raw", "--max-tokens", "9", "--stop", "2")["text"] == "#"
        stopped = answer(house, job, "c", "--raw", "--stop", "#2")
        assert (stopped["text"], stopped["finish_reason"]) == ("", "STOP"), stopped

        # No job takes a base model's name from it.
        renamed = house.submit({**job_of(max_steps=1), "display_name": "tiny"})
        house.wait([renamed])
        assert house.object("generate", "tiny", "c", "--raw", "--max-tokens", "2")["step"] == 0

        both = house.lora("generate", job, "c", "--raw", "--max-tokens", "2", "--with", "tiny", "--with", f"{job}/100").out
        blocks = both.split("== ")[1:]
        assert [block.split("\n")[0] for block in blocks] == [job, "tiny", f"{job}/100"], both
        assert blocks[0] == f"{job}\n#2\n", both
        one_by_one = [answer(house, source, "c", "--raw")["token_ids"] for source in (job, "tiny", f"{job}/100")]
        at_once = house.objects("generate", job, "c", "--raw", "--with", "tiny", "--with", f"{job}/100")
        assert [one["token_ids"] for one in at_once] == one_by_one, "an answer depends on who else is asked"

        chats = [answer(house, "tiny", "hello", *more) for more in ((), ("--system", "be brief"))]
        assert chats[0] == answer(house, "tiny", "<user>hello<assistant>", "--raw"), chats
        assert chats[1] == answer(house, "tiny", "<system>be brief<user>hello<assistant>", "--raw"), chats
        warm = ("tiny", "c", "--raw", "--temperature", "1.5", "--top-p", "0.9", "--max-tokens", "20")
        first, again, other = (answer(house, *warm, "--seed", seed)["token_ids"] for seed in (1, 1, 2))
        assert first == again != other, (first, other)

        folder = house.adapter(job)
        house.lora("adapter", "import", "mine", "--path", folder)
        assert answer(house, "tiny+mine", "c", "--raw")["token_ids"] == one_by_one[0]


def refused_usage(house, *arguments):
    result = house.run("generate", *arguments)
    assert result.status == 2 and "error: USAGE: " in result.err and result.out == "", result
    return result.err


def test_what_cannot_be_asked():
    with house_with_model() as house:
        def refused(reason, *arguments):
            result = house.run("generate", *arguments)
            assert result.status == 1 and reason in result.err and result.out == "", result
            return result.err

        refused("NOTHING_TO_ASK", "nobody", "a")
        refused("NO_NAME", "tiny+", "a")
        refused("NO_NAME", "", "a")
        refused("JOB_NOT_FOUND", "job-aaaaaaaa", "a")
        refused("ADAPTER_NOT_FOUND", "tiny+none", "a")
        house.lora("model", "add", "wide", "--path", write_model(house.folder / "wide", hidden=64, tokenizer=True))
        wide = house.submit({**job_of(max_steps=1), "base_model": "wide"})
        house.wait([wide])
        house.lora("adapter", "import", "wides", "--path", house.adapter(wide))
        assert "adapter 'wides' is of another base model: " in refused("ADAPTER_DOES_NOT_FIT", "tiny+wides", "a")
        assert "44 more than the 256 positions" in refused("PROMPT_TOO_LONG", "tiny", "a" * 300, "--raw")
        job = house.submit(job_of(checkpoint_every_steps=0, max_steps=100000))
        house.wait([job], until=lambda job: job["step"] > 2)
        assert "the first one at step 100000" in refused("NO_CHECKPOINT", job, "a")
        refused("CHECKPOINT_NOT_FOUND", f"{job}/7", "a")
        house.lora("cancel", job)
        bare = write_model(house.folder / "bare", tokenizer=True)
        house.lora("model", "add", "bare", "--path", bare)
        assert "all must be of one base model" in refused("INVALID_FIELDS", "tiny", "a", "--with", "bare")
        tokenizer = bare / "tokenizer.json"
        tokenizer.write_text(tokenizer.read_text() + " ")
        assert "put them back, or register the model again" in refused("MODEL_CHANGED", "bare", "a", "--raw")
        longest = answer(house, "tiny", "a" * 250, "--raw", "--max-tokens", "100")
        assert longest["completion_tokens"] <= 7, "256 positions: 6 more, and a token that needs none"
        assert f"ask '{job}/2'" in refused_usage(house, f"{job}/02", "a")
        for step in ("x", "", "1.5", "99999999999999999999"):
            assert f"'{job}/{step}' names no step of job '{job}'" in refused_usage(house, f"{job}/{step}", "a")
        assert "there is no job and no base model 'nobody/x'" in refused("NOTHING_TO_ASK", "nobody/x", "a")
        assert "from 1 to 1048576, got '1e3'" in refused_usage(house, "tiny", "a", "--max-tokens", "1e3")
        assert "from 0 to 18446744073709551615, got '-1'" in refused_usage(house, "tiny", "a", "--seed=-1")
        assert len(refused_usage(house, "tiny", "a", "--max-tokens", "0")) < 150
        half = "the prompt is not: at byte 2, 0xE2 begins no whole character"
        for stdin, prompt in ((None, os.fsdecode(b"ab\xe2\x82")), (b"ab\xe2\x82", "-")):
            command = list(map(str, house.lora_command("generate", "tiny", prompt)))
            told = subprocess.run(command, input=stdin, capture_output=True, timeout=60)
            assert told.returncode == 1 and f"INVALID_ARGUMENT: all text must be UTF-8, and {half}" in told.stderr.decode(), told
        wrong = house.run("evaluate", "tiny", "--dataset", "rows", "--exact-match", "#.")
        assert wrong.status == 2 and "has no group" in wrong.err, wrong
        assert "DATASET_NOT_FOUND" in house.run("evaluate", "tiny", "--dataset", "no", "--exact-match", "(.)").err


# Two that can be asked, one of them with an answer that an expression like (a+)+$ goes back and forth over.
MIXED = [{"prompt": "a" * 300, "completion": "#0"}, {"prompt": "b", "completion": "a" * 40 + "b"},
         {"prompt": "c" * 280, "completion": "#2"}, {"prompt": "d", "completion": "#3"}]


def test_rows_that_cannot_be_asked_are_left_out():
    with house_with_model() as house:
        house.add_dataset("mixed", MIXED)
        house.add_dataset("long", MIXED[:1])
        how = ("--exact-match", "#(.)", "--max-tokens", "2")
        table = house.lora("evaluate", "tiny", "--dataset", "mixed", *how)
        assert "of 2 right" in table.out and table.out.endswith(", 2 rows could not be asked\n"), table
        assert table.out.count("not asked: PROMPT_TOO_LONG: row ") == 2, table
        assert "the own answer of 1 row (1), so none" in table.err, table
        *rows, total = house.objects("evaluate", "tiny", "--dataset", "mixed", *how)
        assert {row["row"]: row["error"]["reason"] for row in rows if "error" in row} == {0: "PROMPT_TOO_LONG", 2: "PROMPT_TOO_LONG"}, rows
        assert sorted(row["row"] for row in rows) == [0, 1, 2, 3], rows
        assert (total["rows"], total["not_asked"], total["without_reference"]) == (2, 2, 1), total
        none = house.run("evaluate", "tiny", "--dataset", "long", *how)
        assert none.status == 1 and "error: PROMPT_TOO_LONG: none of 1 row could be asked; row 0 of" in none.err, none
        house.add_dataset("empty", [{"prompt": "", "completion": "#1"}])
        empty = house.run("evaluate", "tiny", "--dataset", "empty", *how)
        assert "error: PROMPT_INVALID: none of 1 row could be asked; row 0 of dataset 'empty': the prompt is empty" in empty.err, empty
        gave_up = house.lora("evaluate", "tiny", "--dataset", "mixed", "--exact-match", "(a+)+$", "--max-tokens", "2")
        assert "- (the expression gave up)" in gave_up.out and "answers of 1 row (1) and was given up" in gave_up.err, gave_up
        *rows, total = house.objects("evaluate", "tiny", "--dataset", "mixed", "--exact-match", "(a+)+$", "--max-tokens", "2")
        assert total["gave_up"] == 1 and [row["row"] for row in rows if row.get("gave_up")] == [1], rows

        lorad.matching.SEARCH_SECONDS = 0.5
        with lorad.connect(house.address) as client:
            judged = client.evaluate("tiny", "mixed", "#(.)", max_tokens=2, progress=False)
            assert (judged.rows, judged.without_reference, judged.gave_up) == (2, 1, []), judged
            assert judged.not_asked.column("row") == [0, 2] and str(judged).endswith(", 2 rows could not be asked"), judged
            judged = client.evaluate("tiny", "mixed", "(a+)+$", max_tokens=2, progress=False)
            assert judged.gave_up == [1] and 1 in judged.wrong.column("row"), judged
            error = python_package.error_of(lorad.LoradError, client.evaluate, "tiny", "long", "#(.)", progress=False)
            assert error.reason == "PROMPT_TOO_LONG" and "none of 1 row" in str(error), error


def slow_model(folder):
    """Of so many random weights that an answer takes some seconds."""
    write_model(folder, tokenizer=True, positions=256)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "head_dim": 128}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    (folder / "random_weights.json").write_text('{"seed": 1}')
    return folder


def test_answers_make_way_for_a_job_of_another_model():
    with house_with_model() as house:
        house.lora("model", "add", "slow", "--path", slow_model(house.folder / "slow"))
        for seed in range(1, 20):
            asks = ("slow", "a", "--raw", "--max-tokens", "250", "--temperature", "1", "--seed", seed)
            alone = answer(house, *asks)
            if alone["completion_tokens"] > 100:
                break
        assert alone["completion_tokens"] > 100, "too short an answer to be interrupted"
        # Unbuffered: communicate() below knows nothing of what a buffer has beside the first byte.
        client = subprocess.Popen(list(map(str, house.lora_command("generate", *asks))), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  bufsize=0)
        first = client.stdout.read(1)
        job = house.submit({**job_of(max_steps=20), "priority": 100})
        house.wait([job])
        rest, err = client.communicate(timeout=120)
        assert (first + rest).decode() == alone["text"] + "\n", ("an answer that was interrupted is another one", first + rest, alone, err)
        assert client.returncode == 0 and b"waits: " in err, err


def test_jobs_that_came_later_do_not_pass_an_ask():
    """Three jobs of another model train at any time for a minute, or until it is answered: 10 s and what those need to end."""
    with house_with_model() as house:
        other = write_model(house.folder / "other", tokenizer=True, positions=256)
        house.lora("model", "add", "other", "--path", other)
        jobs = []

        def train():
            live = [job for job in jobs if house.object("show", job)["state"] not in ("SUCCEEDED", "FAILED")]
            while len(live) < 3:
                live.append(house.submit({**job_of(max_steps=1000 + 500 * (len(jobs) % 3)), "base_model": "other"}))
                jobs.append(live[-1])

        train()
        house.wait(jobs, until=lambda job: job["state"] == "RUNNING")
        client = subprocess.Popen(list(map(str, house.lora_command("generate", "tiny", "a", "--raw", "--max-tokens", "4"))),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        began = time.monotonic()
        while client.poll() is None and time.monotonic() - began < 60:
            train()
            time.sleep(0.2)
        waited = time.monotonic() - began
        out, err = client.communicate(timeout=120)
        print(f"an ask waited for {waited:.1f} s, {len(jobs)} jobs had come")
        assert client.returncode == 0 and out and waited < 45, (waited, len(jobs), err)
        house.wait(jobs)


def test_jobs_beside_answers_keep_their_bits():
    with house_with_model() as house:
        alone = house.submit(job_of(max_steps=2000, checkpoint_every_steps=10))
        house.wait([alone])
        beside = house.submit(job_of(max_steps=2000, checkpoint_every_steps=10))
        house.wait([beside], until=lambda job: job["last_checkpoint_step"] >= 10)
        asked = 0
        while house.object("show", beside)["state"] == "RUNNING":
            told = house.objects("generate", beside, "c", "--raw", "--max-tokens", "12", "--with", "tiny")
            assert len(told) == 2 and told[0]["step"] >= 10, told
            asked += 1
        assert asked > 0
        house.wait([beside])
        (a, b) = (house.adapter(job) / "adapter_model.safetensors" for job in (alone, beside))
        assert a.read_bytes() == b.read_bytes(), "an answer has changed what a job trains"


def test_a_client_that_leaves_and_a_daemon_that_is_killed():
    with house_with_model() as house:
        command = list(map(str, house.lora_command("generate", "tiny", "a", "--raw", "--max-tokens", "250")))
        for end in (signal.SIGINT, signal.SIGKILL):
            client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            client.stdout.read(1)
            client.send_signal(end)
            client.communicate(timeout=60)
        job = house.submit(job_of(max_steps=4))
        house.wait([job])
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        client.stdout.read(1)
        house.kill()
        client.communicate(timeout=120)
        house.start()
        assert answer(house, job, "c", "--raw", "--max-tokens", "2")["completion_tokens"] <= 2


def test_from_python():
    with house_with_model() as house:
        with lorad.connect(house.address) as client:
            name = house.submit({**job_of(), "display_name": "of digits"})
            job = client.job(name).wait(progress=False)
            pieces = []
            told = client.generate(job, "e", raw=True, max_tokens=2, on_text=lambda index, text: pieces.append((index, text)))
            assert str(told) == "#4" == "".join(text for _, text in pieces) and told.finish_reason == "LENGTH", told
            at_once = client.generate([job, "tiny", f"{job.name}/300"], "e", raw=True, max_tokens=2)
            assert at_once[0] == at_once[2] == told != at_once[1], at_once
            named = client.generate(["of digits", "tiny", "of digits/300"], "e", raw=True, max_tokens=2)
            assert named == at_once, named
            assert client.evaluate("of digits", "rows", "#(.)", max_tokens=2, progress=False).right == 8
            assert client.generate("tiny", [{"role": "user", "content": "hello"}]) == client.generate("tiny", "hello")
            assert client.generate("tiny", told.token_ids, max_tokens=1).prompt_tokens == 2
            right = client.evaluate(job, "rows", "#(.)", max_tokens=2, progress=False)
            assert (right.right, right.rows, len(right.wrong)) == (8, 8, 0) and str(right) == "exact match: 8 of 8 right (100.0 %)", right
            wrong = client.evaluate("tiny", "rows", "#(.)", max_tokens=2, limit=3, progress=False)
            assert wrong.exact_match == 0 and wrong.wrong.column("expected") == ["0", "1", "2"], wrong
            python_package.error_of(lorad.NotFoundError, client.generate, "nobody", "a")
            error = python_package.error_of(lorad.InvalidError, client.evaluate, job, "rows", "#.", progress=False)
            assert "has no group" in str(error), error
            for text in ("\ud800", [{"role": "user", "content": "\ud800"}]):
                error = python_package.error_of(lorad.InvalidError, client.generate, "tiny", text)
                assert error.code == "INVALID_ARGUMENT", error
            began = time.monotonic()
            python_package.error_of(TimeoutError, client.generate, "tiny", "a", raw=True, max_tokens=255, timeout=0.01)
            assert time.monotonic() - began < 5


if __name__ == "__main__":
    main([value for name, value in list(globals().items()) if name.startswith("test_")])
