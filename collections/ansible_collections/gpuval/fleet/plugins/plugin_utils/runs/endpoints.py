"""Checks ``gpuval_endpoints``, the services to which each node measures its network, and converts to base units."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from ...module_utils.network import endpoints as services
from ...module_utils.node_directory import NodeError
from ..core import units
from ..core.errors import SettingError
from ..core.text import meant

SETTING = "gpuval_endpoints"
#: {key in the setting: (key in a node's plan, base unit, example, largest value)}, for figures with units.
FIGURES: Mapping[str, tuple[str, str, str, float]] = {
    "size": ("size_bytes", "bytes", "64 MB", 10e9),
    "min_rate": ("least_bytes_per_second", "bytes/s", "100 MB/s", 1e12),
    "max_latency": ("most_seconds", "seconds", "5 ms", 60),
    "max_loss": ("most_loss_ratio", "ratio", "1 %", 1),
}
TEXTS = ("name", "url", "address", "proxy", "ca_file", "method")
METHODS = ("GET", "PUT")
MOST = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FIGURE = re.compile(r"(\d+(?:\.\d+)?) ?(\S+)")


def parse(value: Any) -> list[dict[str, Any]]:
    """Check and convert ``gpuval_endpoints`` into the form that nodes get. Raises SettingError."""
    value = value or []
    if not isinstance(value, list) or len(value) > MOST:
        raise SettingError(
            f"{SETTING}: must be a list of at most {MOST} endpoints: {{name: s3, url: https://HOST/PATH}}"
        )
    endpoints = [_parse(entry, f"{SETTING}[{number}]") for number, entry in enumerate(value)]
    names = [entry["name"] for entry in endpoints]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SettingError(f"{SETTING}: two endpoints have the name {twice}: rename one")
    return endpoints


def _parse(entry: Any, where: str) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise SettingError(f"{where}: must be a mapping: {{name: s3, url: https://HOST/PATH}}")
    keys = [*TEXTS, *FIGURES]
    if unknown := [str(key) for key in entry if key not in keys]:
        raise SettingError(f"{where}: unknown keys {', '.join(unknown)}{meant(unknown[0], keys)}")
    if wrong := next((key for key in TEXTS if not isinstance(entry.get(key, ""), str)), None):
        raise SettingError(f"{where}: {wrong} must be text")
    if not _NAME.fullmatch(entry.get("name", "")):
        raise SettingError(f"{where}: give a name of up to 64 letters, digits, '.', '_' and '-'")
    endpoint: dict[str, Any] = {key: entry[key] for key in TEXTS if entry.get(key)}
    _check_urls(endpoint, where)
    for key, (target, unit, example, most) in FIGURES.items():
        if entry.get(key) is not None:
            endpoint[target] = _figure(entry[key], f"{where}: {key}", unit, example, most)
    method, size = endpoint.get("method", "GET"), endpoint.get("size_bytes")
    if method not in METHODS:
        raise SettingError(f"{where}: method {method[:20]}: must be one of {', '.join(METHODS)}")
    if endpoint.get("address") and (size or endpoint.get("method") or "least_bytes_per_second" in endpoint):
        raise SettingError(f"{where}: an address is only connected to: give a url for method, size or min_rate")
    if method == "PUT" and not size:
        raise SettingError(f"{where}: PUT needs a size, such as 64 MB")
    if "least_bytes_per_second" in endpoint and (size or 0) < services.LEAST_BYTES:
        raise SettingError(f"{where}: min_rate needs a size of {services.LEAST_BYTES} bytes or more, such as 64 MB")
    return endpoint


def _check_urls(entry: Mapping[str, str], where: str) -> None:
    if bool(entry.get("url")) == bool(entry.get("address")):
        raise SettingError(f"{where}: give either url (https://HOST/PATH) or address (HOST:PORT)")
    try:
        services.parse(dict(entry))
        for key in ("url", "proxy"):
            parts = urlsplit(entry.get(key, ""))
            if "@" in parts.netloc or parts.query:  # plans in the store contain it
                raise SettingError(
                    f"{where}: {key} has a user, password or query: remove it, plans and records show the {key}; "
                    "name what needs no login"
                )
            if parts.port == 0 or (key == "proxy" and entry.get(key) and parts.scheme != "http"):
                raise SettingError(f"{where}: {key} must be http://HOST:PORT with a port from 1 to 65535")
        if urlsplit(f"//{entry.get('address', '')}").port == 0:
            raise SettingError(f"{where}: address needs a port from 1 to 65535")
    except (NodeError, ValueError) as error:
        if isinstance(error, SettingError):
            raise
        kind = "url (https://HOST/PATH)" if entry.get("url") else "address (HOST:PORT)"
        raise SettingError(f"{where}: the {kind} cannot be read: give scheme, host and a port of 1 to 65535") from None


def _figure(value: Any, where: str, unit: str, example: str, most: float) -> float:
    match = _FIGURE.fullmatch(str(value).strip())
    number = math.nan
    with suppress(units.UnitError):
        number = float(units.convert(float(match[1]), match[2], unit)) if match else math.nan
    if not 0 <= number <= most or (number == 0 and unit != "ratio"):
        raise SettingError(f"{where} {str(value)[:60]}: must be a figure with its unit, such as {example}")
    return int(number) if unit == "bytes" else number
