"""Nodes of a report with figures of their own."""

import random

TFLOPS = "diagnostics_matmul_bf16_tflops"


def node(name, figures, **fields):
    """``figures`` are (metric, unit, {scope: value})."""
    metrics = [
        {"name": metric, "value": value, "unit": unit, "scope": scope}
        for metric, unit, parts in figures
        for scope, value in parts.items()
    ]
    return {
        "name": name,
        "accelerator": "nvidia",
        "catalogue_sku": "h200",
        "identity": {},
        "stages": [{"name": "diagnostics", "state": "success", "workload": "diagnostics"}],
        "metrics": {"diagnostics": metrics},
        **fields,
    }


def gpus(values):
    return {f"gpu:{index}": value for index, value in enumerate(values)}


def fleet(count, *, seed=1, cv=0.005, repeat=0.002, factor=lambda number: 1.0, figures=1):
    """Nodes of 8 GPUs; ``factor`` slows a node's cores in the first figure."""
    draw = random.Random(seed)
    nodes = []
    for number in range(count):
        told = []
        for figure in range(figures):
            rate = 670.0 * draw.gauss(1, cv) * (factor(number) if figure == 0 else 1)
            name = TFLOPS if figure == 0 else f"diagnostics_other_{chr(97 + figure)}_tflops"
            told.append((name, "TFLOP/s", gpus([rate * draw.gauss(1, repeat) for _ in range(8)])))
        nodes.append(node(f"node-{number}", told))
    return nodes


def racks(count, **more):
    return [{"rack": f"r{number // 8}", **{key: of(number) for key, of in more.items()}} for number in range(count)]
