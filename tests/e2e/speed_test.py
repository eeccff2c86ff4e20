"""How fast the house is beside training: uploads in bounded memory, lists and starts with 10,000 jobs.

usage: speed_test.py [csv=MB] [bar=MB_PER_SECOND] [TEST ...]     bar: of the CSV
"""

import concurrent.futures
import os
import pathlib
import random
import re
import resource
import statistics
import subprocess
import sys
import time

from formats import token_rows, write_model
from house import House, ROOT, main, tell

CHECKOUT = (ROOT / "README.md").resolve().parent

SAID = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
CSV_BYTES = int(SAID.get("csv", 50)) * 1_000_000
CSV_SPEED_MIN = float(SAID.get("bar", 0))
UPLOAD_BYTES = 100 << 20
UPLOAD_RSS_BYTES_MAX = 32 << 20
CLIENT_RSS_BYTES_MAX = 48 << 20
JOBS = 10_000
LIST_SECONDS_MAX = 0.100
START_SECONDS_MAX = 1.0


def peak_rss_bytes(pid):
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def test_upload_in_bounded_memory():
    with House(None, "--workers", "none") as house:
        path = house.folder / "big.jsonl"
        row = '{"messages": [{"role": "user", "content": "' + "why? " * 60 + '"}, {"role": "assistant", "content": "' + "because. " * 40 + '"}]}\n'
        with path.open("w") as file:
            for _ in range(UPLOAD_BYTES // len(row) + 1):
                file.write(row)
        before = peak_rss_bytes(house.process.pid)
        began = time.monotonic()
        dataset = house.object("dataset", "add", "big", path)
        seconds = time.monotonic() - began
        grown = peak_rss_bytes(house.process.pid) - before
        tell(f"    {dataset['size_bytes'] / 1e6:.0f} MB, {dataset['rows']} rows in {seconds:.1f} s ({dataset['size_bytes'] / 1e6 / seconds:.0f} MB/s); "
             f"the daemon grew by {grown / 1e6:.1f} MB")
        assert dataset["size_bytes"] == path.stat().st_size
        assert grown < UPLOAD_RSS_BYTES_MAX
    house.clear()


def write_csv(path):
    """Of so many bytes; cells with commas and quotes, no two rows alike."""
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
    with path.open("w") as file:
        written = file.write("question,completion\n")
        while written < CSV_BYTES:
            question, answer = " ".join(draw.choices(words, k=40)), " ".join(draw.choices(words, k=30))
            written += file.write(f'"{question}, ""{answer[:20]}""?",{answer}\n')


def test_a_csv_in_bounded_memory():
    with House(None, "--workers", "none") as house:
        path = house.folder / "big.csv"
        write_csv(path)
        before = peak_rss_bytes(house.process.pid)
        began = time.monotonic()
        dataset = house.object("dataset", "add", "big", path, "--columns", "prompt=question")
        speed = path.stat().st_size / 1e6 / (time.monotonic() - began)
        grown = peak_rss_bytes(house.process.pid) - before
        client = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        tell(f"    a CSV of {path.stat().st_size / 1e6:.0f} MB, {dataset['rows']} rows: {speed:.0f} MB/s; the daemon grew by {grown / 1e6:.1f} MB, "
             f"lora had {client / 1e6:.1f} MB at its peak")
        assert grown < UPLOAD_RSS_BYTES_MAX and client < CLIENT_RSS_BYTES_MAX
        assert speed >= CSV_SPEED_MIN
    house.clear()


def create_jobs(house, count):
    """Through the API from Python; the command line would start a process for each."""
    stubs = house.folder / "stubs"
    stubs.mkdir()
    sys.path[:0] = [str(stubs), str(CHECKOUT / "third_party/wheels/googleapis"), *map(str, (CHECKOUT / "third_party/wheels/python").glob("*"))]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", CHECKOUT / "proto", f"--python_out={stubs}", f"--grpc_python_out={stubs}",
                    *sorted((CHECKOUT / "proto/lorad/v1").glob("*.proto"))], check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    import grpc
    from lorad.v1 import jobs_pb2, jobs_pb2_grpc
    with grpc.insecure_channel(house.address) as channel, concurrent.futures.ThreadPoolExecutor(32) as pool:
        jobs = jobs_pb2_grpc.JobsStub(channel)

        def create(i):
            jobs.CreateJob(jobs_pb2.CreateJobRequest(job=jobs_pb2.Job(
                display_name=f"job number {i}", base_model="small", training_dataset="rows", labels={"team": "math"},
                adapter={"rank": 8, "target_modules": ["q_proj", "v_proj"]}, training={"max_steps": 10, "max_length": 512})))
        for _ in pool.map(create, range(count)):
            pass


def test_ten_thousand_jobs():
    with House(None, "--workers", "none") as house:
        house.lora("model", "add", "small", "--path", write_model(house.folder / "model"))
        house.add_dataset("rows", token_rows(random.Random(1), 20, longest=200))
        began = time.monotonic()
        create_jobs(house, JOBS)
        seconds = time.monotonic() - began
        tell(f"    {JOBS} jobs created in {seconds:.1f} s ({JOBS / seconds:.0f} a second)")

        def listing():
            began = time.monotonic()
            lines = house.lora("ls").out.count("\n")
            assert lines == JOBS + 1, lines
            return time.monotonic() - began
        times, starts = [listing() for _ in range(20)], []
        for _ in range(3):
            house.stop()
            starts.append(house.start())
            times += [listing() for _ in range(20)]
        # The fastest counts: hosts are slow for seconds at a time.
        tell(f"    lora ls: {1000 * min(times):.0f} to {1000 * max(times):.0f} ms, median {1000 * statistics.median(times):.0f} ms")
        tell("    lorad serve: " + ", ".join(f"{1000 * s:.0f} ms" for s in starts))
        assert len(house.objects("ls")) == JOBS
        assert min(times) < LIST_SECONDS_MAX, "lora ls is too slow"
        assert min(starts) < START_SECONDS_MAX, "lorad serve starts too slowly"
    house.clear()


if __name__ == "__main__":
    main([test_upload_in_bounded_memory, test_a_csv_in_bounded_memory, test_ten_thousand_jobs])
