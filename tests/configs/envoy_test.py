"""A real Envoy with configs/envoy.yaml."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
from pathlib import Path

import balancer

BUILT = Path(__file__).parents[2] / "build" / "envoy" / "bin" / "envoy"
ENVOY = os.environ.get("QUIRE_ENVOY") or shutil.which("envoy") or shutil.which(str(BUILT))


class Envoy(balancer.Balancer):
    file = "envoy.yaml"

    def edited(self, text: str, ports: list[int]) -> str:
        endpoint = text[text.index("              - endpoint:") :]
        assert "quire-replicas, port_value: 8080" in endpoint
        endpoints = "".join(
            endpoint.replace("quire-replicas", "127.0.0.1").replace("8080", str(port))
            for port in dict.fromkeys(ports)
        )
        self.replicas = len(set(ports))
        self.admin = balancer.free_port()
        listener = "address: 0.0.0.0, port_value: 8080"
        assert listener in text and "port_value: 9901" in text
        return (
            text.replace(endpoint, endpoints)
            .replace("- timeout: 2s", "- timeout: 30s")  # a busy machine is no lost replica
            .replace(listener, f"address: 127.0.0.1, port_value: {self.port}")
            .replace("port_value: 9901", f"port_value: {self.admin}")
        )

    def command(self, text: str, folder: Path) -> list[str]:
        (folder / "envoy.yaml").write_text(text)
        return [str(ENVOY), "--config-path", str(folder / "envoy.yaml"), "--concurrency", "2",
                "--disable-hot-restart", "--drain-time-s", "1"]  # fmt: skip

    def is_ready(self) -> bool:
        """Envoy asks no replica before the first health checks."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=5)
        try:
            with contextlib.closing(connection):
                connection.request("GET", "/clusters")
                hosts = connection.getresponse().read().decode()
        except OSError:
            return False
        return hosts.count("health_flags::healthy") >= self.replicas


class EnvoyTest(balancer.RoutingCase):
    balancer = Envoy if ENVOY else None


class EnvoyWithASharedCatalogTest(balancer.SharedCatalogCase):
    balancer = Envoy if ENVOY else None


class EnvoyBeforeAServiceTest(balancer.AmbiguousRequestCase):
    balancer = Envoy if ENVOY else None
