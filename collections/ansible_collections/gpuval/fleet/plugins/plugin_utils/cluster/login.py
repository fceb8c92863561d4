"""Logs in to a Kubernetes cluster: the library `kubernetes` reads kubeconfig, plugins and certificates."""

import contextlib
import functools
import importlib
import logging
import logging.handlers
import os
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..core.errors import GpuvalError
from ..core.step_options import PathText

with contextlib.suppress(ImportError):  # the package `kubernetes` requires urllib3; `_library` reports what is missing
    import urllib3

#: A dead connection (dropped by a NAT) is detected after 30 + 3 x 10 seconds.
_KEEPALIVE = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]

FOLDER_PREFIX = "gpuval-login-"
MAX_COMPLAINTS = 1000

#: Addresses that are reached without a proxy, whatever the environment says.
_NEVER_BY_PROXY = "localhost,127.0.0.0/8,::1"


class ClusterError(GpuvalError):
    """The cluster is unreachable, or rejected a request. `code` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class ClusterAccess:
    """How to reach a cluster. An empty `kubeconfig` means KUBECONFIG, ~/.kube/config, else the pod's own account."""

    kubeconfig: PathText = ""
    context: str = ""
    namespace: str = "gpuval"


def plain_reason(error: BaseException) -> str:
    """The reason of a failed request, without the names of urllib3's objects."""
    reason = getattr(error, "reason", None)
    text = str(reason if isinstance(reason, BaseException) else error)
    return re.sub(r"^<[^>]*>: ?|^\S*Connection\(.*?\): ?", "", text)


@functools.cache
def _library(name: str) -> Any:
    try:
        # The import costs a second and 40 MB, so only where a cluster is used.
        return importlib.import_module(name)
    except ImportError as error:
        raise ClusterError(f"kubernetes is needed on the controller: pip install kubernetes ({error})") from None


def log_in(access: ClusterAccess, folder: str) -> Any:
    """Log in to a cluster. Returns an ApiClient of the library `kubernetes`. `folder`: where keys and certificates are
    written."""
    client, config = _library("kubernetes.client"), _library("kubernetes.config")
    configuration, proxy = client.Configuration(), ""
    path = access.kubeconfig or os.environ.get("KUBECONFIG", "") or "~/.kube/config"
    has_kubeconfig = any(Path(part).expanduser().is_file() for part in path.split(os.pathsep) if part)
    with _complaints() as complaints:
        try:
            if has_kubeconfig:
                config.load_kube_config(path, access.context or None, configuration, False, folder)
                _own_files(configuration, folder)
                proxy = _proxy_url(path, access.context)
            elif access.kubeconfig or access.context:
                raise ClusterError(f"no kubeconfig {path}: check gpuval_kubeconfig")
            else:
                config.load_incluster_config(configuration)
        except config.ConfigException as error:
            if has_kubeconfig:
                raise ClusterError(f"{path}: {error}") from None
            raise ClusterError(
                f"no cluster to reach: no kubeconfig ({path}) and not inside a cluster: set gpuval_kubeconfig"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClusterError(f"{path} is not a valid kubeconfig: {error}") from None
    if complaints and not configuration.api_key and not configuration.cert_file:
        raise ClusterError(f"the login to the cluster failed: {complaints[0].getMessage()}")
    configuration.socket_options = _KEEPALIVE
    configuration.connection_pool_maxsize = 16
    try:
        _set_proxy(configuration, proxy)
        return client.ApiClient(configuration)
    except (urllib3.exceptions.HTTPError, AssertionError) as error:
        raise ClusterError(f"{configuration.host} is unreachable through its proxy: {plain_reason(error)}") from None


def _own_files(configuration: Any, folder: str) -> None:
    """Copy keys and certificates into `folder`: the library writes each only once per process, perhaps into the folder
    of another Cluster, which that Cluster removes."""
    for name in ("ssl_ca_cert", "cert_file", "key_file"):
        path = Path(getattr(configuration, name) or "")
        if path.parent.name.startswith(FOLDER_PREFIX) and path.parent != Path(folder):
            setattr(configuration, name, shutil.copy(path, folder))


def remove_folder(folder: str, process: int) -> None:
    """Remove the keys and certificates of a login, only in the process that logged in (PID `process`)."""
    if os.getpid() == process:  # a forked process leaves its parent's files
        shutil.rmtree(folder, ignore_errors=True)


def _proxy_url(path: str, context: str) -> str:
    """The cluster's proxy-url in the kubeconfig `path`, which the library ignores; empty if none. `context` "": the
    current context."""
    merged = _library("kubernetes.config.kube_config").KubeConfigMerger(path).config
    used = merged["contexts"].get_with_name(context or merged["current-context"])["context"]
    return str(merged["clusters"].get_with_name(used["cluster"])["cluster"].safe_get("proxy-url") or "")


def _set_proxy(configuration: Any, proxy: str) -> None:
    """Set the proxy as kubectl does: from the kubeconfig, else from the environment."""
    no_proxy = ""
    if not proxy:
        proxy = _environment("HTTPS_PROXY" if configuration.host.startswith("https:") else "HTTP_PROXY")
        no_proxy = _environment("NO_PROXY")
        if "*" in no_proxy.replace(" ", "").split(","):
            proxy = ""
        no_proxy = f"{no_proxy},{_NEVER_BY_PROXY}"
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    configuration.proxy, configuration.no_proxy = proxy or None, no_proxy
    login = urllib3.util.parse_url(proxy).auth if proxy else None
    configuration.proxy_headers = urllib3.make_headers(proxy_basic_auth=unquote(login)) if login else None


def _environment(name: str) -> str:
    return os.environ.get(name) or os.environ.get(name.lower(), "")


@contextlib.contextmanager
def _complaints() -> Iterator[list[logging.LogRecord]]:
    """Collects errors that the library `kubernetes` only logs, such as a failed login plugin."""
    handler = logging.handlers.BufferingHandler(MAX_COMPLAINTS)
    handler.setLevel(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        yield handler.buffer
    finally:
        logging.getLogger().removeHandler(handler)
