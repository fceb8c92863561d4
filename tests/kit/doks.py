"""The API of DigitalOcean on a loopback port, as far as Kubernetes clusters go, with faults.

Clients reach it by plain HTTP, or as https://api.digitalocean.com through its CONNECT, as by a proxy: programs whose
address cannot be set run unchanged.
"""

from __future__ import annotations

import json
import ssl
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import certificates

TOKEN = "dop_v1_kit-secret-9e1c"
HOST = "api.digitalocean.com"
SIZES = [
    {"slug": "s-2vcpu-4gb", "price_hourly": 0.03571, "regions": ["tor1", "nyc1"], "available": True},
    {"slug": "gpu-h200x8-1128gb", "price_hourly": 27.52, "regions": ["tor1"], "available": True,
     "gpu_info": {"count": 8, "model": "nvidia_h200"}},
    {"slug": "gpu-old", "price_hourly": 1, "regions": ["tor1"], "available": False},
    {"slug": "free", "regions": ["tor1"], "available": True},
]  # fmt: skip
KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
users: [{name: u, user: {token: kube-secret}}]
"""


class Doks:
    """The account: change ``clusters``, ``sizes``, ``limit`` and faults; ``requests`` are (method, path)."""

    def __init__(self, *, page_size: int = 2) -> None:
        self.page_size = page_size
        self.clusters: list[dict[str, Any]] = []
        self.sizes, self.limit, self.used, self.kubeconfig = SIZES, 10, 1, KUBECONFIG
        self.vpcs = [{"id": "a1-b2", "name": "default-tor1", "region": "tor1", "default": True},
                     {"id": "c3-d4", "name": "own", "region": "nyc1", "default": False}]  # fmt: skip
        #: Bodies of the orders of clusters and pools, in the order of their arrival.
        self.orders: list[Any] = []
        #: Looks at a cluster until its nodes run; names of nodes that never do, with the reason.
        self.looks, self.stuck = 2, {}
        #: (method, start of the path): statuses with message to answer first; 0 closes the connection after the work.
        self.faults: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self.requests: list[tuple[str, str]] = []
        self.strangers: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"doks": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.tls: ssl.SSLContext | None = None

    def __enter__(self) -> Doks:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self, directory: Path) -> dict[str, str]:
        """Variables with which a program reaches this server as the real one."""
        made = certificates.CertificateFiles(directory)
        certificates.ensure(made, [HOST])
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(made.server, made.server_key)
        return {"https_proxy": self.url, "no_proxy": "", "SSL_CERT_FILE": str(made.authority), "DO_API_TOKEN": TOKEN}

    def add(self, name: str, tags: list[str], pools: list[dict[str, Any]], region: str = "tor1") -> dict[str, Any]:
        cluster = {"id": str(uuid.uuid4()), "name": name, "region": region, "tags": ["k8s", *tags], "node_pools": [],
                   "status": {"state": "provisioning"}, "looks": 0}  # fmt: skip
        self.clusters.append(cluster)
        for pool in pools:
            self.add_pool(cluster, pool)
        return cluster

    def add_pool(self, cluster: dict[str, Any], pool: dict[str, Any]) -> dict[str, Any]:
        nodes = [{"name": f"{pool['name']}-{number}", "status": {"state": "provisioning"}} for number in
                 range(pool["count"])]  # fmt: skip
        made = {**pool, "id": str(uuid.uuid4()), "tags": ["k8s", *(pool.get("tags") or [])], "nodes": nodes}
        cluster["node_pools"].append(made)
        cluster["looks"] = 0
        return made

    def look(self, cluster: dict[str, Any]) -> dict[str, Any]:
        cluster["looks"] += 1
        if cluster["looks"] >= self.looks and cluster["status"]["state"] == "provisioning":
            cluster["status"] = {"state": "running"}
        if cluster["looks"] >= self.looks:
            for node in (node for pool in cluster["node_pools"] for node in pool["nodes"]):
                stuck = self.stuck.get(node["name"])
                node["status"] = {"state": "provisioning", "message": stuck} if stuck else {"state": "running"}
        return cluster

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        parts = path.removeprefix("/v2/").split("/")
        if path == "/v2/account":
            return 200, {"account": {"droplet_limit": self.limit}}
        if path == "/v2/droplets":
            return 200, {"droplets": [], "meta": {"total": self.used}}
        if path == "/v2/sizes":
            return 200, self._page("sizes", self.sizes, query)
        if path == "/v2/vpcs":
            return 200, self._page("vpcs", self.vpcs, query)
        if path == "/v2/kubernetes/clusters" and method == "GET":
            return 200, self._page("kubernetes_clusters", self.clusters, query)
        if path == "/v2/kubernetes/clusters":
            made = self.add(body["name"], body["tags"], body["node_pools"], body["region"])
            return 201, {"kubernetes_cluster": made}
        cluster = next((one for one in self.clusters if one["id"] == parts[2]), None)
        if cluster is None:
            return 404, {"message": "not found"}
        return self._of_cluster(method, parts[3:], cluster, body)

    def _of_cluster(self, method: str, rest: list[str], cluster: dict[str, Any], body: Any) -> tuple[int, Any]:
        if not rest and method == "GET":
            return 200, {"kubernetes_cluster": self.look(cluster)}
        if not rest:
            self.clusters.remove(cluster)
            return 204, None
        if rest == ["kubeconfig"]:
            return 200, self.kubeconfig
        if rest == ["node_pools"]:
            return 201, {"node_pool": self.add_pool(cluster, body)}
        cluster["node_pools"] = [pool for pool in cluster["node_pools"] if pool["id"] != rest[1]]
        return 204, None

    def _page(self, key: str, entries: list[Any], query: dict[str, list[str]]) -> dict[str, Any]:
        number = int(query.get("page", ["1"])[0])
        shown = entries[(number - 1) * self.page_size : number * self.page_size]
        more = number * self.page_size < len(entries)
        return {key: shown, "links": {"pages": {"next": "n"}} if more else {}, "meta": {"total": len(entries)}}


class _Handler(BaseHTTPRequestHandler):
    doks: Doks
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_CONNECT(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path != f"{HOST}:443" or self.doks.tls is None:
            self.doks.strangers.append(self.path)
            self.close_connection = True
            return
        self.connection = self.doks.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
        self.close_connection = False

    def _any(self) -> None:
        address = urlsplit(self.path)
        self.doks.requests.append((self.command, address.path))
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(401, {"id": "unauthorized", "message": "Unable to authenticate you"})
        found = [waiting for (method, start), waiting in self.doks.faults.items()
                 if waiting and method == self.command and address.path.startswith(start)]  # fmt: skip
        status, message = found[0].pop(0) if found else (None, "")
        if status:
            return self._send(status, {"id": "unprocessable_entity", "message": message})
        if self.command == "POST":
            self.doks.orders.append(json.loads(body))
        answer = self.doks.answer(self.command, address.path, parse_qs(address.query), json.loads(body or "null"))
        if status == 0:
            self.close_connection = True
            return None
        return self._send(*answer)

    do_GET = do_POST = do_DELETE = _any  # noqa: N815 - names of http.server

    def _send(self, status: int, document: Any) -> None:
        data = (
            document.encode()
            if isinstance(document, str)
            else b""
            if document is None
            else json.dumps(document).encode()
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
