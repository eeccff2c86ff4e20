"""deploy/kubernetes without a cluster: every object against the published schema, what the objects call each other, and what the
pods run, run here. Without PyYAML and jsonschema (python3-yaml, python3-jsonschema) it is skipped.

usage: kubernetes_test.py [TEST ...]
"""

import copy
import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile

from house import GOLDEN, LORAD, ROOT, WORKER, House, Skipped, main, tell

try:
    import jsonschema
    import yaml
except ImportError as error:
    yaml, lacking = None, f"{error.name} is not installed"
else:
    lacking = None

MANIFESTS = ROOT / "deploy/kubernetes"
SCHEMA = ROOT / "tests/e2e/kubernetes_schema.json"


def read(path):
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def objects():
    """All of deploy/kubernetes/gpu, but how kustomize puts them together."""
    return [one for path in sorted((MANIFESTS / "gpu").glob("*.yaml")) if path.name != "kustomization.yaml" for one in read(path)]


def the(kind, name):
    (one,) = [one for one in objects() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return one


def mistakes(found):
    """What the API would not take in the objects."""
    schema = json.loads(SCHEMA.read_text())
    said = []
    for one in found:
        name = f"{one['kind']} {one['metadata']['name']}"
        if one["kind"] not in schema["kinds"]:
            said.append(f"{name}: its kind is not in {SCHEMA.name}")
            continue
        validator = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{schema['kinds'][one['kind']]}", "$defs": schema["$defs"]})
        said += [f"{name}: {'/'.join(map(str, error.path))}: {error.message[:200]}" for error in validator.iter_errors(one)]
    return said


def pods():
    """{name: the spec of a StatefulSet's pods}"""
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in objects() if one["kind"] == "StatefulSet"}


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def test_the_api_takes_them():
    found = objects()
    assert not mistakes(found), mistakes(found)
    tell("    " + ", ".join(f"{one['kind']} {one['metadata']['name']}" for one in found))


def test_the_schema_notices():
    """A test that cannot fail is none."""
    def misspell(one):
        one["spec"]["template"]["spec"]["terminationGracePeriod"] = 1

    def mistype(one):
        one["spec"]["replicas"] = "two"

    def forget(one):
        del one["spec"]["template"]["spec"]["containers"][0]["name"]

    for spoil in (misspell, mistype, forget):
        one = copy.deepcopy(the("StatefulSet", "lorad"))
        spoil(one)
        assert len(mistakes([one])) == 1, f"{spoil.__name__}: {mistakes([one])}"


def test_they_call_each_other_by_their_names():
    found = objects()
    names = {(one["kind"], one["metadata"]["name"]) for one in found}
    labels = {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in found if one["kind"] == "StatefulSet"}
    for one in found:
        spec, name = one["spec"], f"{one['kind']} {one['metadata']['name']}"
        chosen = spec.get("podSelector") or spec.get("selector") or {}
        chosen = chosen.get("matchLabels", chosen)
        if chosen:
            assert chosen == labels[one["metadata"]["name"]], f"{name} selects {chosen}"
        if one["kind"] == "StatefulSet":
            assert ("Service", spec["serviceName"]) in names, f"{name}: no service is called {spec['serviceName']}"
    for name, pod in pods().items():
        declared = {volume["name"] for volume in pod["volumes"]}
        declared |= {claim["metadata"]["name"] for claim in the("StatefulSet", name)["spec"]["volumeClaimTemplates"]}
        mounted = {mount["name"] for container in containers(pod) for mount in container["volumeMounts"]}
        assert mounted == declared, f"{name}: {mounted ^ declared}"
        claims = {volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume}
        assert claims <= {claim for kind, claim in names if kind == "PersistentVolumeClaim"}, claims
    (daemon,), (worker,) = pods()["lorad"]["containers"], pods()["lorad-worker"]["containers"]
    (port,) = the("Service", "lorad")["spec"]["ports"]
    assert daemon["ports"] == [{"name": port["targetPort"], "containerPort": port["port"]}]
    assert f"--worker-listen=0.0.0.0:{port['port']}" in daemon["args"]
    assert f"--coordinator=lorad-0.lorad:{port['port']}" in worker["args"]
    (rule,) = the("NetworkPolicy", "lorad")["spec"]["ingress"]
    assert [allowed["port"] for allowed in rule["ports"]] == [port["targetPort"]]
    listed = read(MANIFESTS / "gpu/kustomization.yaml")[0]["resources"]
    assert sorted(listed) == sorted(path.name for path in (MANIFESTS / "gpu").glob("*.yaml") if path.name != "kustomization.yaml")


def test_they_may_do_little():
    for name, pod in pods().items():
        assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0 and pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(pod):
            allowed = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
            assert container["securityContext"] == allowed, f"{name}/{container['name']}: {container['securityContext']}"
            assert "memory" in container["resources"]["limits"], f"{name}/{container['name']}"
        assert pod["terminationGracePeriodSeconds"] >= (75 if name == "lorad" else 15)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """The pods' commands here: their paths are in a folder, their names this host's."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        (folder / "etc").mkdir()
        (folder / "etc/hostname").write_text("lorad-worker-0\n")
        for name in ("var/lib/lorad", "var/lib/lorad-worker", "bundles", "bin"):
            (folder / name).mkdir(parents=True)
        shutil.copytree(GOLDEN / "llama_gqa_untied/model", folder / "models/llama")  # links would lead out of --model-root
        for program in (LORAD, WORKER):
            (folder / "bin" / program.name).symlink_to(program)

    def here(self, word):
        word = re.sub(r"/(var/lib|bundles|etc)\b", lambda path: f"{self.folder}{path[0]}", word)
        return word.replace("/srv/models", f"{self.folder}/models").replace("lorad-0.lorad:7071", f"localhost:{self.port}") \
            .replace("0.0.0.0:7071", f"127.0.0.1:{self.port}").replace("cuda:0", "cpu")

    def words(self, container):
        return [self.here(word) for word in [*container["command"], *container.get("args", [])]]

    def run(self, words):
        done = subprocess.run(words, capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"})
        assert done.returncode == 0, f"{words}: status {done.returncode}: {done.stderr}"


class Daemon(House):
    """`lorad serve` with a pod's arguments, on a free port for clients."""

    def __init__(self, folder, words):
        super().__init__(folder)
        self.words = words

    def command(self, *_):
        return [self.lorad, *self.words[1:], "--listen", "127.0.0.1:0"]


def test_what_the_pods_run():
    """First starts, a bundle that was renewed and one that was replaced, and a job that trains."""
    pod, workers = pods()["lorad"], pods()["lorad-worker"]
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(pathlib.Path(folder))
        data, state, given = (cluster.folder / path for path in ("var/lib/lorad/data", "var/lib/lorad-worker", "bundles/lorad-worker-0.pem"))
        for _ in range(2):  # the second start finds an authority
            cluster.run(cluster.words(pod["initContainers"][0]))
        authority = (data / "authority.pem").read_bytes()

        make = [str(LORAD), "auth", "worker", "lorad-worker-0", "--data-dir", str(data), "-o", str(given), "--replace"]
        cluster.run(make)
        bundle, start = state / "bundle.pem", cluster.words(workers["initContainers"][0])
        cluster.run(start)
        assert bundle.read_bytes() == given.read_bytes() and bundle.stat().st_mode & 0o777 == 0o600
        bundle.write_text("renewed")
        cluster.run(start)
        assert bundle.read_text() == "renewed"
        cluster.run(make)
        cluster.run(start)
        assert bundle.read_bytes() == given.read_bytes()

        with Daemon(cluster.folder, cluster.words(pod["containers"][0])) as house:
            house.workers.append(subprocess.Popen([str(WORKER), *cluster.words(workers["containers"][0])[1:], "--threads=1"],
                                                  stderr=subprocess.DEVNULL))
            house.wait_for_worker()
            assert [worker["name"] for worker in house.objects("worker", "ls")] == ["lorad-worker-0"]
            house.lora("model", "add", "llama", "--path", cluster.folder / "models/llama")
            house.lora("dataset", "add", "rows", GOLDEN / "llama_gqa_untied/r8_all/train.jsonl")
            (job,) = house.wait([house.submit({"base_model": "llama", "training_dataset": "rows", "adapter": {"rank": 4},
                                               "training": {"max_steps": 4, "batch_size": 2}})])
            weights = (house.adapter(job["name"]) / "adapter_model.safetensors").read_bytes()
            tell(f"    trained: {hashlib.sha256(weights).hexdigest()}")
        assert (data / "authority.pem").read_bytes() == authority


def test_kustomize_puts_them_together():
    if not shutil.which("kubectl"):
        raise Skipped("kubectl is not installed")
    for way in ("gpu", "cpu"):
        with tempfile.TemporaryDirectory() as folder:  # kustomize wants files, not links
            shutil.copytree(MANIFESTS, pathlib.Path(folder) / "kubernetes")
            built = subprocess.run(["kubectl", "kustomize", f"{folder}/kubernetes/{way}"], capture_output=True, text=True, timeout=60)
        assert built.returncode == 0, built.stderr
        found = list(yaml.safe_load_all(built.stdout))
        assert len(found) == len(objects()) and not mistakes(found), mistakes(found)
        assert {one["metadata"]["namespace"] for one in found} == {"lorad"}
        (worker,) = [one for one in found if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "lorad-worker"]
        (container,) = worker["spec"]["template"]["spec"]["containers"]
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (way == "gpu"), container
        assert f"--device={'cuda:0' if way == 'gpu' else 'cpu'}" in container["args"], container


if __name__ == "__main__":
    main([test_the_api_takes_them, test_the_schema_notices, test_they_call_each_other_by_their_names, test_they_may_do_little,
          test_what_the_pods_run, test_kustomize_puts_them_together], lacking=lacking)
