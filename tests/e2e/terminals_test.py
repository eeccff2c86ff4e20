"""What commands draw on a terminal, however wide it is and whatever it writes."""

import codecs
import fcntl
import gzip
import json
import os
import pathlib
import pty
import random
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata

from formats import write_model
from house import ROOT, House, main
from scripts_test import a_job, prepare


class Terminal:
    """A program on a terminal of 24 lines, and what it has drawn there; with `talk`, on its stderr alone, with `errors`, there too."""

    def __init__(self, command, columns=80, talk=False, errors=False, **environment):
        self.ours, self.theirs = pty.openpty()
        self.resize(columns)
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.theirs} if talk else {
            "stdin": self.theirs, "stdout": self.theirs, "stderr": self.theirs if errors else subprocess.PIPE}
        self.program = subprocess.Popen(list(map(str, command)), env={**os.environ, "TERM": "xterm", **environment}, **streams)
        os.close(self.theirs)
        self.drawn = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a piece may end in the middle of a letter

    def resize(self, columns):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def to_the_end(self, seconds=60):
        """Waits until the program has ended; all that it has drawn since what was drawn before was forgotten."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                piece = os.read(self.ours, 65536) if select.select([self.ours], [], [], 0.2)[0] else b""
            except OSError:
                break
            self.drawn += self.decoder.decode(piece)
        assert self.program.wait(10) == 0, self.drawn[-2000:]
        return self.drawn

    def until(self, *texts, seconds=60):
        """Forgets what was drawn before, and waits until all of these have been drawn since."""
        self.drawn, end = "", time.monotonic() + seconds
        while not all(text in self.drawn for text in texts):
            assert time.monotonic() < end, (texts, self.drawn[-2000:])
            if not select.select([self.ours], [], [], 0.2)[0]:
                continue
            try:
                self.drawn += self.decoder.decode(os.read(self.ours, 65536))
            except OSError:  # the program has ended
                break
        assert all(text in self.drawn for text in texts), (texts, self.drawn[-2000:])

    def until_it_stands(self, again, seconds=60):
        """As a shell waits before it says "Stopped"; where the system stops no group that has no shell, until it has drawn `again`."""
        end = time.monotonic() + seconds
        stat = pathlib.Path(f"/proc/{self.program.pid}/stat")
        while again not in self.drawn and not select.select([self.ours], [], [], 0.01)[0]:
            if stat.read_text().rpartition(")")[2].split()[0] == "T":
                return
            assert time.monotonic() < end, self.drawn[-2000:]


def test_top_stays_up_to_date():
    """On a terminal `lora top`, like `lora watch` without ids, outlives the daemon and ends well at Ctrl-C."""
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        name = house.submit(a_job(max_steps=100_000, checkpoint_every_steps=5, eval_every_steps=0))
        port = house.address.split(":")[1]
        once = house.lora("top").out
        assert "JOB" in once and name in once and "\x1b" not in once, once
        assert [job["name"] for job in json.loads(house.lora("top", "--json").out)["jobs"]] == [name]
        tops = [Terminal(list(map(str, [*house.lora_command(), command]))) for command in ("top", "watch")]
        for top in tops:
            top.until("\x1b[?1049h", name, "RUNNING", "1 job runs")
            assert "0 workers" not in top.drawn and "0 jobs" not in top.drawn, top.drawn  # before the first answer
        for kind in ("dumb", ""):
            assert Terminal([*house.lora_command(), "top"], TERM=kind).to_the_end().replace("\r", "").startswith("1 worker, 1 job runs")
        lines = Terminal([*house.lora_command(), "watch"], TERM="dumb")
        lines.until(name, "RUNNING", "step")
        lines.program.kill()
        assert lines.program.wait(10) and "\x1b" not in lines.drawn, lines.drawn
        house.kill()
        for top in tops:
            top.until("lost 127.0.0.1:" + port)
        house.start("--listen", f"127.0.0.1:{port}")
        for top in tops:
            top.until(name, "RUNNING", "1 job runs")
            top.program.send_signal(signal.SIGINT)
            top.until("\x1b[?25h\x1b[?1049l")
            assert top.program.wait(10) == 0, top.program.stderr.read()
        house.lora("cancel", name)
    house.clear()


def test_a_live_table_that_is_stopped():
    """Ctrl-Z gives the terminal back as it was, SIGCONT draws all again, and Ctrl-\\ is an end as Ctrl-C is."""
    with House(None, "--workers", "none") as house:
        top = Terminal([*house.lora_command(), "top"])
        top.until("\x1b[?1049h", "0 workers")
        top.program.send_signal(signal.SIGTSTP)
        top.until("\x1b[?25h\x1b[?1049l")
        top.until_it_stands("\x1b[?1049h")
        top.program.send_signal(signal.SIGCONT)
        if "\x1b[?1049h" not in top.drawn:  # at once where the system stops no group that has no shell
            top.until("\x1b[?1049h", "\x1b[?25l", "0 workers")
        top.until("\x1b[J")
        top.program.send_signal(signal.SIGQUIT)
        assert top.to_the_end().endswith("\x1b[?25h\x1b[?1049l")
    house.clear()


def test_a_watch_of_more_jobs_than_rows():
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        names = [house.submit(a_job(max_steps=40, eval_every_steps=0, checkpoint_every_steps=0)) for _ in range(30)]
        drawn = Terminal([*house.lora_command(), "watch", *names], columns=100).to_the_end()
        frames = re.split(r"\x1b\[\d+A", drawn)
        assert len(frames) > 3 and all(frame.count("\n") <= 23 for frame in frames[:-1]), [frame.count("\n") for frame in frames]
        assert any("and 8 more" in frame for frame in frames), drawn[-2000:]
        assert all(sum(line.startswith(name) and "SUCCEEDED" in line for line in lines_of(frames[-1])) == 1 for name in names), frames[-1]
    house.clear()


def width_of(text):
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def lines_of(drawn):
    """The lines as they stand on the terminal, without what moves its cursor."""
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", drawn)]


def screen_of(drawn):
    """The lines that stand on a terminal in the end, of which none is wrapped."""
    screen, line, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", drawn):
        if part == "\r":
            column = 0
        elif part == "\n":
            line += 1
            screen += [""] * (line + 1 - len(screen))
        elif part.startswith("\x1b[") and part.endswith("A"):
            line = max(0, line - int(part[2:-1] or 1))
        elif part == "\x1b[2K":
            screen[line] = ""
        elif part == "\x1b[J":
            screen[line:] = [screen[line][:column]]
        else:
            assert not part.startswith("\x1b"), part
            screen[line] = screen[line][:column].ljust(column) + part + screen[line][column + len(part):]
            column += len(part)
    return [text.rstrip() for text in screen if text.strip()]


def test_what_a_watch_says_stands_above_its_bars():
    """That a job is paused, and that the daemon is lost and comes again: each is a line, and each job has one bar below them."""
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        names = [house.submit(a_job(max_steps=100_000, checkpoint_every_steps=5, eval_every_steps=0)) for _ in range(2)]
        house.wait(names, until=lambda job: job["last_checkpoint_step"] >= 5)
        port = house.address.split(":")[1]
        watch = Terminal([*house.lora_command(), "watch", *names], columns=200, errors=True)
        watch.until(*names, "tokens/s")
        seen = watch.drawn
        house.lora("pause", names[0])
        watch.until(f"{names[0]} is PAUSED", names[1])
        seen += watch.drawn
        house.kill()
        watch.until("lost 127.0.0.1:" + port)
        seen += watch.drawn
        house.start("--listen", f"127.0.0.1:{port}")
        watch.until("tokens/s")
        seen += watch.drawn
        house.lora("resume", names[0])
        house.wait(names, until=lambda job: job["state"] == "RUNNING")
        house.lora("finish", *names)
        watch.drawn = ""
        screen = screen_of(seen + watch.to_the_end())
        said = [line for line in screen if line.startswith("lora: ")]
        assert [line.split()[-1] for line in said] == ["cancelled", "again"], screen
        bars = screen[len(said):]
        assert screen[:len(said)] == said and len(bars) == 2, screen
        for name in names:
            assert sum(bar.startswith(name) and "SUCCEEDED" in bar for bar in bars) == 1, screen
    house.clear()


def test_what_has_room_on_a_terminal():
    """`lora watch JOB`, `ls` and `show` at 60, 80 and 120 columns, and a finish: of wide letters and a terminal that shrinks."""
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        title = "\u6570\u5b66 and \u8bed\u6587 are long"  # with all figures at their widest the line has 118 columns
        name = house.submit({**a_job(max_steps=100_000, checkpoint_every_steps=5, eval_every_steps=5, checkpoint_keep_last=2,
                                     checkpoint_keep_best=1), "display_name": title})
        watch = Terminal([*house.lora_command(), "watch", name], columns=120)
        watch.until(f"{name} ({title})", "tokens/s", "left")
        for columns in (80, 60):
            watch.resize(columns)
            watch.until("\x1b[J")  # it draws all again, though nothing may have come
            watch.drawn = watch.drawn[watch.drawn.rindex("\x1b[J"):]
            for _ in range(3):
                before = watch.drawn
                watch.until("tokens/s")
                for line in lines_of(before + watch.drawn)[:-1]:
                    assert width_of(line) < columns, (columns, line)
                    assert "tokens/s" in line or name[:4] not in line, (columns, line)
        house.wait([name], until=lambda job: job["last_checkpoint_step"] >= 15)
        table = Terminal([*house.lora_command(), "watch"], columns=120)
        table.until("\x1b[H", name, "VALIDATION", "\x1b[J")
        for columns in (80, 60):
            table.resize(columns)
            table.until("\x1b[J")  # the end of what it may have been drawing
            table.until("\x1b[H", name, "\x1b[J")
            frame = table.drawn[table.drawn.index("\x1b[H"):table.drawn.rindex("\x1b[J")]
            assert "TOKENS/S" in frame, frame
            assert all(width_of(line) <= columns for line in lines_of(frame)), (columns, frame)
        table.program.send_signal(signal.SIGINT)
        table.to_the_end()
        for columns in (60, 80, 120):
            for line in lines_of(Terminal([*house.lora_command(), "ls"], columns=columns).to_the_end()):
                assert width_of(line) <= columns, (columns, line)
        # Finished where it stands, and said so; the watch ends with it.
        said = house.lora("finish", name)
        assert re.search(rf"{name}: \w+, ends at step \d+ of 100000", said.err), said
        (job,) = house.wait([name])
        assert job["step"] == job["finish_step"] == job["last_checkpoint_step"] < 100_000, job
        assert "SUCCEEDED" in watch.to_the_end()
        house.lora("finish", name)  # once more is no error
        kept = house.objects("checkpoint", "ls", name)
        assert 2 <= len(kept) <= 3 and kept[-1]["step"] == job["step"] and sum(c["best"] for c in kept) == 1, kept
        best = next(c for c in kept if c["best"])
        losses = {e["step"]: e["validation_loss"] for e in house.objects("metrics", name, "--evaluation") if e["step"] > 0}
        assert best["validation_loss"] == min(losses.values()) == losses[best["step"]], (best, losses)
        fetched = house.folder / "best"
        house.lora("checkpoint", "get", name, "--best", "--all", "-o", fetched)
        assert json.loads((fetched / "state.json").read_text())["step"] == best["step"]
        assert house.run("checkpoint", "get", name, "--best", "--step", 5, "-o", house.folder / "no").status == 2
        for language, letters in (("C.UTF-8", "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"), ("C", "_.-~=+*#")):
            shown = Terminal([*house.lora_command(), "show", name], columns=80, LC_ALL=language).to_the_end()
            (line,) = [line for line in lines_of(shown) if line.startswith("losses")]
            curve = line.removeprefix("losses").strip()
            assert len(curve) > 8 and set(curve) <= set(letters), (language, line)
        assert "losses" not in house.lora("show", name).out and "kept are the newest 2 and the best 1" in house.lora("show", name).out
        # One that waits ends at its checkpoint; one that has none is refused.
        waits = house.submit(a_job(max_steps=100_000, checkpoint_every_steps=0, eval_every_steps=0))
        house.wait([waits], until=lambda job: job["step"] >= 2)
        house.lora("pause", waits)
        house.wait([waits], until=lambda job: job["state"] == "PAUSED")
        house.lora("finish", waits)
        assert house.object("show", waits)["state"] == "SUCCEEDED"
        house.lora("worker", "drain", house.objects("worker", "ls")[0]["name"], "--reason", "a test")
        idle = house.submit(a_job())
        refused = house.run("finish", idle)
        assert refused.status == 1 and "NOTHING_TRAINED" in refused.err and "cancel it" in refused.err, refused
    house.clear()


def test_odd_terminals():
    """`watch` and `ls` of an emoji's job at 20 columns and by a locale that is not UTF-8: each line fits and is whole."""
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        rocket = "\U0001f680\U0001f680 to the \U0001f319"
        name = house.submit({**a_job(max_steps=100_000, checkpoint_every_steps=0, eval_every_steps=0), "display_name": rocket})
        for language in ("C.UTF-8", "C"):
            for columns in (20, 40, 120):
                watch = Terminal([*house.lora_command(), "watch", name], columns=columns, LC_ALL=language)
                watch.until("/100000", "\x1b[1A", "/100000")
                listed = Terminal([*house.lora_command(), "ls"], columns=columns, LC_ALL=language).to_the_end()
                for line in lines_of(watch.drawn)[:-1] + lines_of(listed):
                    assert width_of(line) <= columns and "\ufffd" not in line, (language, columns, line)
                assert name in listed and (rocket in listed) == (columns == 120), (language, columns, listed)
                assert (rocket in watch.drawn) == (columns == 120), (language, columns, watch.drawn)
                watch.program.kill()
                watch.program.wait()
                os.close(watch.ours)
        house.lora("cancel", name)
    house.clear()


def test_an_upload_that_takes_long_has_a_bar():
    with House(None, "--workers", "none") as house:
        row = json.dumps({"text": "x" * 1000}).encode() + b"\n"
        wide, narrow, told = uploads = [
            Terminal([*house.lora_command(*json_flag), "dataset", "add", name, "-"], columns=columns, talk=True)
            for name, columns, json_flag in (("wide", 80, []), ("narrow", 19, []), ("told", 80, ["--json"]))]
        for _ in range(6):
            for upload in uploads:
                upload.program.stdin.write(row * 600)
                upload.program.stdin.flush()
            time.sleep(0.3)
        for upload in uploads:
            upload.program.stdin.close()
        drawn = wide.to_the_end()
        assert re.search(r"wide  \d+\.\d MiB  \d+\.\d [KM]iB/s  \ds", drawn) and drawn.endswith("\r\x1b[K"), drawn
        assert all(width_of(line) < 80 for line in lines_of(drawn)), drawn
        assert narrow.to_the_end() == told.to_the_end() == ""
    house.clear()


def test_a_file_that_is_packed_or_converted_has_the_time_left():
    """Bytes of the file are counted, whatever it becomes: CSV, an array and packed files go through a pipe that a reader paces."""
    with House(None, "--workers", "none") as house:
        rows = [{"prompt": f"{i}: {random.Random(i).getrandbits(4000):x}", "completion": "yes"} for i in range(40_000)]
        array = json.dumps(rows).encode()
        files = {"table.csv": "".join(f"{row['prompt']},{row['completion']}\n" for row in [{"prompt": "prompt", "completion": "completion"}, *rows]).encode(),
                 "array.json": array, "lines.jsonl.gz": gzip.compress(b"\n".join(json.dumps(row).encode() for row in rows), 1)}
        for name, content in files.items():
            path = house.folder / name
            path.write_bytes(content)
            upload = Terminal([*house.lora_command(), "dataset", "add", name.split(".")[0], path], talk=True)
            for _ in range(8):  # it stands still half of the time, so that it takes some seconds
                upload.program.send_signal(signal.SIGSTOP)
                time.sleep(0.25)
                upload.program.send_signal(signal.SIGCONT)
                time.sleep(0.02)
            drawn = upload.to_the_end()
            found = re.findall(r"(\d+)%  ([\d.]+) MiB of ([\d.]+) MiB  [\d.]+ [KM]iB/s  \d+s left", drawn)
            assert found and abs(float(found[0][2]) - len(content) / 2**20) < 0.1, (name, drawn)
            shares = [int(share) for share, *_ in found]
            assert shares == sorted(shares) and shares[-1] <= 100, shares
    house.clear()


def test_parquet_has_a_bar_that_moves():
    """The bytes of its rows are counted, from a file and from a pipe: what another process reads of the file, nobody sees."""
    parquet = ROOT / "tests/client/parquet/many.parquet"  # of 12 KiB, 97 MiB of rows
    with House(None, "--workers", "none") as house:
        for name, path in (("file", parquet), ("pipe", "-")):
            upload = Terminal([*house.lora_command(), "dataset", "add", name, path], talk=True)
            if path == "-":
                upload.program.stdin.write(parquet.read_bytes())
            upload.program.stdin.close()
            for _ in range(10):  # it stands still most of the time
                upload.program.send_signal(signal.SIGSTOP)
                time.sleep(0.25)
                upload.program.send_signal(signal.SIGCONT)
                time.sleep(0.02)
            drawn = upload.to_the_end()
            found = [float(mib) for mib in re.findall(rf"{name}  ([\d.]+) MiB  [\d.]+ [KM]iB/s  \d+s", drawn)]
            assert len(found) >= 3 and found == sorted(found) and found[0] < found[-1] <= 97, (name, drawn)
            assert "%" not in drawn, drawn
    house.clear()


def test_a_stored_dataset_that_is_validated_has_a_bar():
    with House(None, "--workers", "none") as house:
        house.lora("model", "add", "small", "--path", write_model(house.folder / "model", tokenizer=True))
        path = house.folder / "rows.jsonl"
        path.write_bytes(json.dumps({"text": 1000 * "r"}).encode() + b"\n")
        path.write_bytes(path.read_bytes() * 60_000)
        house.lora("dataset", "add", "rows", path)
        validation = Terminal([*house.lora_command(), "dataset", "validate", "--dataset", "rows", "--model", "small", "--train-on", "all"], talk=True)
        drawn = validation.to_the_end()
        assert re.search(r"rows +\d+%  [\d.]+ MiB of 58\.\d MiB  [\d.]+ MiB/s  \d+s left", drawn), drawn
        assert drawn.endswith("\r\x1b[K"), drawn
        assert "rows" in validation.program.stdout.read().decode()
    house.clear()


if __name__ == "__main__":
    main([test_top_stays_up_to_date, test_a_live_table_that_is_stopped, test_a_watch_of_more_jobs_than_rows, test_what_a_watch_says_stands_above_its_bars,
          test_what_has_room_on_a_terminal, test_odd_terminals, test_an_upload_that_takes_long_has_a_bar, test_a_file_that_is_packed_or_converted_has_the_time_left, test_parquet_has_a_bar_that_moves, test_a_stored_dataset_that_is_validated_has_a_bar])
