"""The configurations for Kubernetes and Envoy: what they name exists, and fits together."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"


def documents(name: str) -> list[dict[str, Any]]:
    with (CONFIGS / name).open() as file:
        return [d for d in yaml.safe_load_all(file) if d is not None]


def all_resources() -> list[dict[str, Any]]:
    (kustomization,) = documents("kustomization.yaml")
    return [d for name in kustomization["resources"] for d in documents(name)]


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = (d for d in all_resources() if d["kind"] == kind and d["metadata"]["name"] == name)
    return found


def values_of(node: Any, key: str) -> list[Any]:
    """All values under this key, at any depth."""
    if isinstance(node, list):
        return [v for item in node for v in values_of(item, key)]
    if not isinstance(node, dict):
        return []
    found = [node[key]] if key in node else []
    return found + [v for item in node.values() for v in values_of(item, key)]


def settings() -> dict[str, str]:
    """The settings that replica.toml puts in force, by the service itself."""
    out = subprocess.run(
        [
            os.environ["QUIRE_BINARY"],
            "serve",
            "--config",
            CONFIGS / "replica.toml",
            f"--auth.keys_file={CONFIGS / 'keys.example.toml'}",
            "--print-config",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    section, found = "", {}
    for line in out.splitlines():
        if match := re.match(r"\[([a-z_]+)\]", line):
            section = match[1]
        elif match := re.match(r"([a-z_]+) = ([^#]*)", line):
            found[f"{section}.{match[1]}"] = match[2].strip().strip('"')
    return found


class KubernetesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.set = one("StatefulSet", "quire")
        self.pod = self.set["spec"]["template"]["spec"]
        self.replica, self.ingest = self.pod["containers"]

    def test_every_file_is_there_and_parses(self) -> None:
        (kustomization,) = documents("kustomization.yaml")
        files = [f for g in kustomization["configMapGenerator"] for f in g["files"]]
        self.assertEqual(files, ["replica.toml", "envoy.yaml"])
        for file in files:
            self.assertTrue((CONFIGS / file).is_file(), file)
        listed = {CONFIGS / name for name in kustomization["resources"]}
        self.assertEqual(listed, set((CONFIGS / "kubernetes").glob("*.yaml")))
        kinds = sorted(d["kind"] for d in all_resources())
        self.assertEqual(kinds.count("PodDisruptionBudget"), 2)
        for kind in ("StatefulSet", "Deployment", "Service", "HorizontalPodAutoscaler"):
            self.assertIn(kind, kinds)

    def test_kustomize_builds_it(self) -> None:
        if shutil.which("kubectl") is None:
            self.skipTest("there is no kubectl in PATH")
        built = subprocess.run(
            ["kubectl", "kustomize", CONFIGS], capture_output=True, text=True, check=True
        ).stdout
        resources = [d for d in yaml.safe_load_all(built) if d is not None]
        maps = {d["metadata"]["name"] for d in resources if d["kind"] == "ConfigMap"}
        self.assertEqual(len(maps), 2)
        # The names with a digest, so that a changed file starts the pods anew.
        used = {c["name"] for d in resources for c in values_of(d, "configMap")}
        self.assertEqual(used, maps)

    def test_the_time_to_drain_is_within_that_of_the_pod(self) -> None:
        before = int(self.replica["lifecycle"]["preStop"]["exec"]["command"][1])
        drain = float(settings()["server.drain_seconds"])
        self.assertGreaterEqual(self.pod["terminationGracePeriodSeconds"], before + drain + 10)
        # Until then the balancer has seen that the replica is not ready, or gone from DNS.
        (cluster,) = documents("envoy.yaml")[0]["static_resources"]["clusters"]
        interval = int(cluster["health_checks"][0]["interval"].rstrip("s"))
        self.assertGreaterEqual(before, interval)
        self.assertGreater(drain, interval)
        balancer = one("Deployment", "quire-balancer")["spec"]["template"]["spec"]
        wait = int(balancer["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
        self.assertGreater(balancer["terminationGracePeriodSeconds"], wait)

    def test_ports_probes_and_metrics_are_those_of_the_service(self) -> None:
        port = int(settings()["server.port"])
        ports = set(values_of(all_resources(), "containerPort"))
        ports |= set(values_of(all_resources(), "port")) - {"http"}
        ports |= set(values_of(documents("envoy.yaml"), "port_value")) - {9901}
        self.assertEqual(ports, {port})
        annotations = self.set["spec"]["template"]["metadata"]["annotations"]
        self.assertEqual(annotations["prometheus.io/port"], str(port))
        self.assertEqual(settings()["metrics.public"], "true")
        paths = {p["path"] for p in values_of(self.replica, "httpGet")}
        paths |= {c["path"] for c in values_of(documents("envoy.yaml"), "http_health_check")}
        paths.add(annotations["prometheus.io/path"])
        described = json.loads((ROOT / "server/openapi/system.json").read_text())["paths"]
        for path in paths:
            self.assertIn(path, described)
        scrape = (ROOT / "server/metrics/metrics_scrape.cc").read_text()
        for metric in values_of(one("HorizontalPodAutoscaler", "quire"), "metric"):
            self.assertIn(f'"{metric["name"]}"', scrape)

    def test_balancers_close_idle_connections_before_the_replicas_do(self) -> None:
        (idle,) = values_of(documents("envoy.yaml"), "idle_timeout")
        kept = float(settings()["server.idle_timeout_seconds"])
        self.assertLess(float(idle.rstrip("s")), kept)
        self.assertLess(60, kept, "what nginx has where its file says nothing")

    def test_variables_are_settings_and_secrets_stay_out_of_files(self) -> None:
        known = settings()
        for variable in self.replica["env"]:
            name = variable["name"].removeprefix("QUIRE_").replace("__", ".").lower()
            self.assertIn(name, known)
        # One secret, made by hand as kustomization.yaml says.
        made = (CONFIGS / "kustomization.yaml").read_text()
        keys = {s["key"] for s in values_of(self.pod, "secretKeyRef")} | {"keys.toml"}
        for key in keys:
            self.assertIn(key, made)
        self.assertNotIn("secretGenerator", documents("kustomization.yaml")[0])
        self.assertFalse([d for d in all_resources() if d["kind"] == "Secret"])

    def test_mounts_have_volumes_and_selectors_have_pods(self) -> None:
        volumes = {v["name"] for v in self.pod["volumes"]}
        volumes |= {c["metadata"]["name"] for c in self.set["spec"]["volumeClaimTemplates"]}
        mounts = {m["name"] for c in self.pod["containers"] for m in c["volumeMounts"]}
        self.assertEqual(mounts, volumes)
        labels = {
            json.dumps(d["spec"]["template"]["metadata"]["labels"])
            for d in all_resources()
            if d["kind"] in ("StatefulSet", "Deployment")
        }
        for d in all_resources():
            selector = d["spec"].get("selector")
            if selector is not None:
                self.assertIn(json.dumps(selector.get("matchLabels", selector)), labels)
        self.assertEqual(
            one("HorizontalPodAutoscaler", "quire")["spec"]["scaleTargetRef"]["name"], "quire"
        )
        store = self.set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]
        self.assertGreater(
            int(store["storage"].removesuffix("Gi")) << 30, int(settings()["disk.max_bytes"])
        )


class EnvoyTest(unittest.TestCase):
    def test_it_hashes_the_header_of_the_service(self) -> None:
        header = re.search(
            r'kAffinityHeader = "([^"]+)"', (ROOT / "server/support/affinity.h").read_text()
        )
        assert header is not None
        envoy = documents("envoy.yaml")
        self.assertEqual(set(values_of(envoy, "header_name")), {header[1]})
        variable = "$http_" + header[1].lower().replace("-", "_")
        self.assertIn(variable, (CONFIGS / "nginx.conf").read_text())
        (cluster,) = envoy[0]["static_resources"]["clusters"]
        self.assertEqual(cluster["lb_policy"], "RING_HASH")
        addresses = values_of(cluster, "address")
        self.assertIn("quire-replicas", [a for a in addresses if isinstance(a, str)])
        one("Service", "quire-replicas")

    def test_answers_may_take_as_long_as_the_service_lets_them(self) -> None:
        described = json.loads((ROOT / "server/openapi/query.json").read_text())
        longest = max(t["maximum"] for t in values_of(described, "timeout_ms")) / 1000
        envoy = documents("envoy.yaml")
        (idle,) = values_of(envoy, "stream_idle_timeout")
        self.assertGreater(float(idle.rstrip("s")), longest)
        manager = envoy[0]["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
        # The events of a job have no longest time; what is silent ends by the time above.
        self.assertEqual(set(values_of(manager["typed_config"]["route_config"], "timeout")), {"0s"})
        read = re.search(r"proxy_read_timeout (\d+)s;", (CONFIGS / "nginx.conf").read_text())
        assert read is not None
        self.assertGreater(float(read[1]), longest)

    def test_it_refuses_what_changes_one_replica(self) -> None:
        routes = documents("envoy.yaml")[0]["static_resources"]["listeners"][0]["filter_chains"][0][
            "filters"
        ][0]["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]

        def passes(method: str, path: str) -> bool:
            for route in routes:
                match = route["match"]
                if "safe_regex" in match and not re.fullmatch(match["safe_regex"]["regex"], path):
                    continue
                methods = [h["string_match"]["safe_regex"] for h in match.get("headers", [])]
                if methods and not re.fullmatch(methods[0]["regex"], method):
                    continue
                return "route" in route
            raise AssertionError(path)

        for method, path in PASSED:
            self.assertTrue(passes(method, path), (method, path))
        for method, path in REFUSED:
            self.assertFalse(passes(method, path), (method, path))


PASSED = [
    ("POST", "/v1/query"),
    ("POST", "/v1/query/plan"),
    ("GET", "/v1/queries/qry_1/explain"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/api/chat"),
    ("GET", "/v1/documents"),
    ("GET", "/v1/documents/a/content"),
    ("POST", "/v1/vector_stores/vs_1/search"),
    ("GET", "/v1/files"),
    ("GET", "/readyz"),
]
REFUSED = [
    ("POST", "/v1/documents"),
    ("PUT", "/v1/documents/a"),
    ("PATCH", "/documents/a"),
    ("DELETE", "/v1/documents/a"),
    ("POST", "/v1/documents/a/warm"),
    ("POST", "/v1/files"),
    ("POST", "/v1/vector_stores"),
    ("DELETE", "/v1/vector_stores/vs_1/files/f"),
    ("POST", "/v1/jobs/job_1/cancel"),
    ("POST", "/mcp"),
    ("POST", "/v1/admin/drain"),
    ("GET", "/v1/admin/config"),
]

if __name__ == "__main__":
    unittest.main()
