"""A real nginx with configs/nginx.conf."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import balancer

NGINX = os.environ.get("QUIRE_NGINX") or shutil.which("nginx") or shutil.which("/usr/sbin/nginx")


class Nginx(balancer.Balancer):
    file = "nginx.conf"

    def edited(self, text: str, ports: list[int]) -> str:
        for i, port in enumerate(ports):
            text = text.replace(f"10.0.0.1{i + 1}:8080", f"127.0.0.1:{port}")
        assert "10.0.0." not in text
        return text.replace("listen 8080;", f"listen 127.0.0.1:{self.port};")

    def command(self, text: str, folder: Path) -> list[str]:
        (folder / "quire.conf").write_text(text)
        paths = "".join(
            f"{name}_temp_path {folder}/{name};\n"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"daemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{paths}include {folder}/quire.conf;\n}}\n"
        )
        return [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf")]


class NginxTest(balancer.RoutingCase):
    balancer = Nginx if NGINX else None


class NginxWithASharedCatalogTest(balancer.SharedCatalogCase):
    balancer = Nginx if NGINX else None


class NginxBeforeAServiceTest(balancer.AmbiguousRequestCase):
    balancer = Nginx if NGINX else None
