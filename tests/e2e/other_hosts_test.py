"""Workers on other hosts, over TLS: in network namespaces that the test makes where it may, else on this machine's own address.
Who is let in, what is said to who is not, certificates that are renewed, and the same bits as from a worker of this host.

usage: other_hosts_test.py [TEST ...]
"""

import contextlib
import hashlib
import re
import shutil
import signal
import subprocess
import time
import types

from hosts import OtherHost, Site, lorad, must, until
from house import GOLDEN, LORA, LORAD, WORKER, House, main, tell

MODEL, ROWS = "llama_gqa_untied", "llama_gqa_untied/r8_all"


def a_job(steps=24):
    return {"base_model": "llama", "training_dataset": "rows", "adapter": {"rank": 8, "dropout": 0.1, "seed": 1},
            "training": {"max_steps": steps, "batch_size": 3, "max_length": 256, "learning_rate": 2e-3, "seed": 1, "checkpoint_every_steps": 5}}


class TrainingSite(Site):
    def prepare(self):
        self.lora("model", "add", "llama", "--path", GOLDEN / MODEL / "model")
        self.lora("dataset", "add", "rows", GOLDEN / ROWS / "train.jsonl")

    def train(self):
        """Trains a job, and returns its adapter's hash."""
        (job,) = self.wait([self.submit(a_job())], seconds=240)
        return hashlib.sha256((self.adapter(job["name"]) / "adapter_model.safetensors").read_bytes()).hexdigest()


@contextlib.contextmanager
def a_site(*options):
    host = OtherHost()
    try:
        with TrainingSite(host, *options) as site:
            yield site
        site.clear()
    finally:
        host.close()


def is_refused(site, reason, on_worker, on_coordinator, *options):
    """A worker with these options is not let in, and both logs say why. Its exit status: it ends, or is ended."""
    log = f"refused-{reason.replace(' ', '-')}.log"
    before, alive = site.log(), site.alive()
    worker = site.start_other(*options, log=log)
    until(lambda: on_worker in site.worker_log(log), f"{log} says {on_worker!r}", 30)
    if on_coordinator:
        until(lambda: on_coordinator in site.log()[len(before):], f"the daemon's log says {on_coordinator!r}", 30)
    worker.terminate()
    status = worker.wait(20)
    assert site.alive() == alive, f"{reason}: {site.alive()}, not {alive}"
    tell(f"    {reason}: " + next(line for line in site.worker_log(log).splitlines() if on_worker in line)[:240])
    return status


def test_a_worker_on_another_host_trains_the_same_bits():
    with a_site() as site:
        site.prepare()
        local = site.start_worker("--device", "cpu", "--threads", "1", "--name", "here")
        site.wait_for_worker()
        expected = site.train()
        local.terminate()
        local.wait()
        site.start_other("--credentials", site.bundle("there"))
        site.wait_for_worker()
        assert site.alive() == ["there"], site.alive()
        found = site.train()
        assert found == expected, f"{found}, and from a worker of this host {expected}"
        tell(f"    {found} from both")


def test_models_lie_elsewhere_on_another_host():
    """Under another path, with other times: what they hold counts. What is missing or differs is named, and another worker takes
    the job meanwhile."""
    with a_site() as site:
        site.prepare()
        there = site.folder / "there"
        shutil.copytree(GOLDEN / MODEL / "model", there / "model", copy_function=shutil.copyfile)  # without the times
        source = (GOLDEN / MODEL).resolve()
        first = site.start_other("--credentials", site.bundle("elsewhere"), "--model-map", f"{source}={there}")
        site.wait_for_worker()
        expected = site.train()
        assert "MODEL_" not in site.log(), site.log()
        first.terminate()
        first.wait()

        weights = there / "model/model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        site.start_other("--credentials", site.bundle("other-files"), "--model-map", f"{source}={there}")
        site.start_other("--credentials", site.bundle("no-files"), "--model-map", f"{source}={site.folder}/nowhere")
        until(lambda: site.alive() == ["no-files", "other-files"], "both workers are there")
        job = site.submit(a_job())
        for what in ("MODEL_DIFFERS: the model at .*there/model on this worker's host is not the coordinator's: .* differs",
                     "MODEL_NOT_FOUND: .*nowhere/model: .* --model-map FROM=TO",
                     "worker 'other-files' lacks files of a model", "worker 'no-files' lacks files of a model"):
            until(lambda: re.search(what, site.log()), f"the daemon's log says {what}")
        # Mended while the job waits.
        weights.write_bytes(whole)
        site.wait([job], seconds=120)
        found = hashlib.sha256((site.adapter(job) / "adapter_model.safetensors").read_bytes()).hexdigest()
        assert found == expected, f"{found}, not {expected}"
        tell("    " + re.search("MODEL_DIFFERS: .*", site.log())[0][:300])


def test_who_is_refused():
    with a_site() as site, Site(site.host) as other:
        good = site.bundle("good")
        site.start_other("--credentials", good)
        until(lambda: site.alive() == ["good"], "the worker with a certificate is let in")

        loopback = site.host.address.startswith("127.")
        is_refused(site, "no bundle", "COORDINATOR_WITH_TLS" if loopback else "CREDENTIALS_MISSING", "")
        is_refused(site, "another authority", "COORDINATOR_OF_ANOTHER_AUTHORITY", "TLS_NOT_COME_ABOUT",
                   "--credentials", other.bundle("stranger"))
        copy = site.folder / "copy.pem"
        shutil.copy(good, copy)
        copy.chmod(0o600)
        is_refused(site, "a living worker's name", "WORKER_NAME_TAKEN", "refused worker 'good' at", "--credentials", copy)
        assert is_refused(site, "another worker's name", "WORKER_NAME_NOT_CERTIFIED", "WORKER_NAME_NOT_CERTIFIED",
                          "--credentials", site.bundle("second"), "--name", "good") == 1

        old = site.bundle("old", "--valid", "10s")
        time.sleep(10)
        assert is_refused(site, "an expired certificate", "CERTIFICATE_EXPIRED", "", "--credentials", old) == 1
        assert site.alive() == ["good"], site.alive()


def test_what_only_the_daemon_can_see_is_in_its_log_too():
    """A certificate that expires while its worker stands still, and a worker of the daemon's own host without a bundle, which
    speaks no TLS there. Others without one, or with one that they see to have expired, do not dial at all."""
    with a_site("--lease", 3) as site:
        worker = site.start_other("--credentials", site.bundle("still", "--valid", "15s"))
        until(lambda: site.alive() == ["still"], "the worker is let in")
        worker.send_signal(signal.SIGSTOP)
        time.sleep(15)
        worker.send_signal(signal.SIGCONT)
        expired = "refused .*: CERTIFICATE_EXPIRED: the certificate of worker \"still\""
        until(lambda: re.search(expired, site.log()), "the daemon's log says that the certificate has expired", 30)
        until(lambda: "CERTIFICATE_EXPIRED" in site.worker_log(), "the worker's log says so too", 30)
    with TrainingSite(types.SimpleNamespace(address="127.0.0.1", prefix=[])) as site:
        is_refused(site, "no bundle", "COORDINATOR_WITH_TLS", "TLS_NOT_COME_ABOUT")
        site.clear()


def test_clients_are_not_served_at_the_workers_port():
    with a_site() as site:
        client = [*site.host.prefix, LORA, "--server", site.door, "cluster"]
        said = []
        for _ in range(3):  # how gRPC says that a connection was closed is a matter of the moment
            done = subprocess.run(list(map(str, client)), capture_output=True, text=True, timeout=60)
            assert done.returncode != 0, done.stdout
            said.append(done.stderr)
        assert any("a port for workers" in words for words in said), said
        until(lambda: "TLS_NOT_COME_ABOUT" in site.log(), "the daemon's log says that somebody came without TLS")
        site.lora("cluster")


def test_certificates_are_renewed_while_a_job_trains():
    """Longer than two certificates live, on one stream."""
    with a_site() as site:
        site.prepare()
        bundle = site.bundle("short", "--valid", "30s")  # renewed with 10 s to go
        first = bundle.read_text()
        worker = site.start_other("--credentials", bundle)
        site.wait_for_worker()
        began = time.monotonic()
        while time.monotonic() - began < 65:
            site.train()
        log = site.worker_log()
        assert worker.poll() is None, log
        assert log.count("registered with the coordinator") == 1 and "no coordinator" not in log, log
        renewals = log.count("the certificate is renewed until")
        assert renewals >= 2, log
        assert bundle.read_text() != first and bundle.stat().st_mode & 0o777 == 0o600
        # What was written is what a worker comes back with.
        worker.terminate()
        worker.wait(20)
        site.start_other("--credentials", bundle)
        until(lambda: site.alive() == ["short"], "the worker is back")
        tell(f"    {renewals} renewals on one stream")


def test_files():
    """Damaged, missing, or open to others: which file, and the command that mends it."""
    with a_site() as site:
        bundle, data = site.bundle("b"), site.data_dir
        authority = data / "authority.pem"
        for path in (bundle, authority):
            assert path.stat().st_mode & 0o777 == 0o600, path
        for again, reason in ((lorad("auth", "init", "--data-dir", data), "AUTHORITY_EXISTS"),
                              (lorad("auth", "worker", "b", "--data-dir", data, "-o", bundle), "BUNDLE_EXISTS"),
                              (lorad("auth", "worker", "b c", "--data-dir", data), "WORKER_NAME_INVALID"),
                              (lorad("auth", "worker", "b", "--data-dir", data, "--valid", "soon"), "INVALID_DURATION"),
                              (lorad("auth", "worker", "b", "--data-dir", site.folder / "none"), "AUTHORITY_MISSING")):
            assert again.status == 1 and f"error: {reason}: " in again.err, str(again)

        whole = bundle.read_text()
        bundle.chmod(0o644)
        assert is_refused(site, "mode 0644", f"BUNDLE_UNSAFE: {bundle}: ", "", "--credentials", bundle) == 1
        bundle.chmod(0o600)
        bundle.write_text(whole[:len(whole) // 2])
        assert is_refused(site, "half a bundle", f"BUNDLE_DAMAGED: {bundle}: ", "", "--credentials", bundle) == 1
        bundle.unlink()
        assert is_refused(site, "no bundle there", f"BUNDLE_MISSING: {bundle}: ", "", "--credentials", bundle) == 1

        assert site.stop() == 0
        text = authority.read_text()
        authority.write_text(text[:len(text) // 2])
        damaged = lorad("serve", "--data-dir", data, "--workers", "none", "--listen", "127.0.0.1:0", "--worker-listen", "127.0.0.1:0")
        assert f"error: AUTHORITY_DAMAGED: {authority}: " in damaged.err, str(damaged)
        authority.write_text(text)
        authority.chmod(0o640)
        open_to_others = lorad("auth", "worker", "c", "--data-dir", data, "-o", site.folder / "c.pem")
        assert f"`chmod 600 {authority}`" in open_to_others.err, str(open_to_others)
        authority.chmod(0o600)

        # Another authority: the one before is kept, and workers of it are refused until they have new bundles.
        bundle.write_text(whole)
        bundle.chmod(0o600)
        replaced = must(lorad("auth", "init", "--data-dir", data, "--replace"))
        kept = re.search(r"kept as (\S+authority-[0-9a-f]{8}\.pem)", replaced)
        assert kept and open(kept[1]).read() == text, replaced
        site.start()
        is_refused(site, "a replaced authority", "COORDINATOR_OF_ANOTHER_AUTHORITY", "TLS_NOT_COME_ABOUT", "--credentials", bundle)
        site.bundle("b", "--replace", path=bundle)
        site.start_other("--credentials", bundle)
        until(lambda: site.alive() == ["b"], "the worker is let in with a new bundle")


def test_addresses_for_stages():
    """--stage-address is a name or an address of this host; anything else is refused at once, by a worker as by the daemon."""
    with House(None, "--workers", "none") as house:
        daemon = [LORAD, "serve", "--data-dir", house.folder / "other", "--listen", "127.0.0.1:0", "--workers", "cpu:1"]
        for address, why in (("127.0.0.1:7072", "no port"), ("[::1]", "no brackets"), ("127.0.0.1\n", r"127\.0\.0\.1\\n' is no name"),
                             ("two words", "is no name"), ("0.0.0.0", "all addresses"), ("::", "all addresses"),
                             ("224.0.0.1", "or many"), ("255.255.255.255", "or many"), ("ff02::1", "or many"),
                             ("no.such.host.invalid", "no name that this"),
                             ("192.0.2.1", "is of no interface .*Cannot assign requested address")):  # nobody's: RFC 5737
            wanted = rf"STAGE_ADDRESS: --stage-address '.*{why}.*; give a name or an address of this (machine|host) .*leave it out"
            for command in ([WORKER, "--coordinator", house.address], daemon):
                said = subprocess.run([*command, "--stage-address", address], capture_output=True, text=True, timeout=60)
                assert said.returncode == 1 and said.stderr.count("\n") == 1 and re.search(wanted, said.stderr), said
        tell(f"    {said.stderr.strip()}")
        house.start_worker("--device", "cpu", "--threads", "1", "--stage-address", "localhost")
        house.wait_for_worker()
    house.clear()


if __name__ == "__main__":
    main([test_a_worker_on_another_host_trains_the_same_bits, test_models_lie_elsewhere_on_another_host, test_who_is_refused,
          test_what_only_the_daemon_can_see_is_in_its_log_too, test_clients_are_not_served_at_the_workers_port,
          test_certificates_are_renewed_while_a_job_trains, test_files, test_addresses_for_stages])
