"""The stage ``endpoints``: measures the network path from the node to services that the operator named."""

from __future__ import annotations

import functools
from typing import Any, Optional

from gpuval_runner.files import write_result

TRIES = 20
#: Bytes to read from a service whose object has no declared size.
READ_BYTES = 16 << 20
#: Figure that the probe of a service returns, name of the metric, unit.
FIGURES = (
    ("name_seconds", "endpoints_name_seconds", "seconds"),
    ("tcp_seconds", "endpoints_connect_seconds", "seconds"),
    ("tls_seconds", "endpoints_tls_seconds", "seconds"),
    ("loss_ratio", "endpoints_loss_ratio", "ratio"),
    ("mtu_bytes", "endpoints_mtu_bytes", "bytes"),
    ("certificate_seconds", "endpoints_certificate_left_seconds", "seconds"),
    ("bytes_per_second", "endpoints_bytes_per_second", "bytes/s"),
)
#: Setting by which the operator limits a figure of a service, that figure, and whether the limit is a minimum.
FLOORS = (
    ("least_bytes_per_second", "bytes_per_second", True),
    ("most_seconds", "tcp_seconds", False),
    ("most_loss_ratio", "loss_ratio", False),
)


def endpoints(entries: list[dict[str, Any]], seconds: float) -> int:
    """Measure each declared service in turn, for `seconds` to connect and `seconds` to transfer, and write the stage's
    result. Returns the exit code 0: criteria judge the figures."""
    from gpuval_node.hardware.source import metric
    from gpuval_node.network import endpoints as services
    from gpuval_node.network.parallel import in_parallel

    metrics: list[dict[str, Any]] = [metric("endpoints_count", len(entries))]
    troubles, as_declared = [], []
    for entry in entries:
        endpoint = entry["name"]
        task = functools.partial(services.probe, services.parse(entry), READ_BYTES, seconds, TRIES)
        limit = 3 * seconds + 5  # the look-up of a name may hang
        late = {"state": "name", "message": f"no end within {limit:g} s"}
        figures = in_parallel({endpoint: task}, limit).get(endpoint, late)
        scope = f"link:{endpoint}"
        missed = [text for floor in FLOORS if (text := _missed(entry, figures, *floor))]
        is_there = figures["state"] == "ok"
        metrics += [
            metric("endpoints_reached_count", int(is_there), scope),
            metric("endpoints_floor_misses_count", len(missed), scope),
            *(metric(name, figures[key], scope, unit) for key, name, unit in FIGURES if figures.get(key) is not None),
        ]
        if not is_there:
            troubles.append(f"{endpoint}: {figures['state']}: {figures['message']}")
        elif missed:
            troubles.append(f"{endpoint}: {', '.join(missed)}")
        else:
            as_declared.append(endpoint)
        print(f"{endpoint}: {figures}", flush=True)
    names = [figure["name"] for figure in metrics]
    rates, connected = names.count("endpoints_bytes_per_second"), names.count("endpoints_connect_seconds")
    metrics += [metric("endpoints_rates_count", rates), metric("endpoints_connected_count", connected)]
    message = "; ".join([*troubles, *([f"as declared: {', '.join(as_declared)}"] if as_declared else [])])
    fingerprints = {"endpoints_rates": "measured" if rates else "none"}
    write_result({"state": "success", "message": message[:2000], "metrics": metrics, "fingerprints": fingerprints})
    return 0


def _missed(entry: dict[str, Any], figures: dict[str, Any], key: str, figure: str, is_least: bool) -> str:
    """Return the message for a figure beyond its declared limit; empty if it is within, or no limit is declared."""
    limit: Optional[float] = entry.get(key)
    if limit is None:
        return ""
    value = figures.get(figure)
    if value is None:
        return f"no {figure} (floor {limit:g})"
    if (value < limit) if is_least else (value > limit):
        return f"{figure} {value:.4g}, {'under' if is_least else 'over'} the declared {limit:g}"
    return ""
