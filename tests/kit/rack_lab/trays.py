"""What the tools of a compute tray print: the published outputs of real trays, with the values of one tray put in."""

import functools
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tools import ToolResult

PUBLISHED = Path(__file__).parents[2] / "unit" / "hardware" / "data"
_LEAF = re.compile(r"^(\s*)<(\w+)>([^<]*)</\2>\s*$")
_OPEN, _CLOSE = re.compile(r"^\s*<(\w+)>\s*$"), re.compile(r"^\s*</(\w+)>\s*$")
#: A counter of throttling in the log; names of two of them in a query, and in the log.
_COUNTER = "clocks_event_reasons_counters/clocks_event_reasons_counters_{}"
_IN_LOG = {
    "sw_thermal_slowdown": "sw_therm_slowdown",
    "hw_thermal_slowdown": "hw_therm_slowdown",
    "hw_power_brake_slowdown": "hw_power_brake",
}
#: State of IMEX on a tray that does not have it.
ABSENT = "absent"


@functools.cache
def blocks_of(model):
    """Head, GPUs and end of the published `nvidia-smi -q -x` of this model; a GPU is its lines, with path or text."""
    log = (PUBLISHED / f"nvidia_smi_v13_{model}.xml").read_text()
    head, *gpus = re.split(r"(?=^\t<gpu id=)", log, flags=re.MULTILINE)
    return head, tuple(tuple(_lines_of(gpu.partition("\n</nvidia_smi_log>")[0])) for gpu in gpus)


def _lines_of(gpu):
    inside = []
    for line in gpu.splitlines():
        if leaf := _LEAF.match(line):
            yield "/".join([*inside, leaf[2]]), leaf[1], leaf[2], leaf[3]
            continue
        if opened := _OPEN.match(line):
            inside.append(opened[1])
        elif _CLOSE.match(line) and inside:
            inside.pop()
        yield None, line, "", ""


@dataclass
class TrayGpu:
    """One GPU: the values that it has instead of the published ones, by path, and its NVLinks by number."""

    index: int
    xml: dict[str, str]
    links: dict[int, dict]

    @property
    def uuid(self):
        return self.xml["uuid"]


@dataclass
class Tray:
    """A compute tray. ``run`` answers in place of its tools; ``imex`` is domain, idle or absent, ``peers`` are what the
    trays of its domain say: address and state."""

    name: str
    model: str
    gpus: list[TrayGpu]
    address: str
    imex: str = ABSENT
    imex_service: str = "active"
    peers: list[tuple[str, str]] = field(default_factory=list)
    label: str = ""
    partition: str = ""
    transport: dict[str, float] = field(default_factory=dict)
    throttled: dict[int, dict[str, int]] = field(default_factory=dict)

    def run(self, tool, *arguments, timeout=0):
        answers = {
            ("nvidia-smi", "-q", "-x"): self.log,
            ("nvidia-smi", "nvlink", "-s"): self.link_states,
            ("nvidia-smi", "nvlink", "-e"): self.link_errors,
            ("nvidia-imex-ctl", "-N"): self.imex_nodes,
            ("systemctl",): self.services,
            ("timedatectl",): lambda: "yes",
        }
        answer = answers.get((tool, *arguments)) or answers.get((tool,))
        if tool == "nvidia-smi" and arguments[0].startswith("--query-gpu=index,uuid,clocks_event"):
            answer = functools.partial(self.query, arguments[0].partition("=")[2].split(","))
        text = answer() if answer else None
        if text is None:
            return ToolResult(tool, missing=tool not in ("nvidia-smi", "nvidia-imex-ctl"), returncode=1)
        return ToolResult(tool, text, returncode=0)

    def log(self):
        head, blocks = blocks_of(self.model)
        text = [re.sub(r"<attached_gpus>\d+<", f"<attached_gpus>{len(self.gpus)}<", head)]
        for gpu in self.gpus:
            lines = blocks[gpu.index]
            unknown = gpu.xml.keys() - {path for path, *_ in lines}
            assert not unknown, f"the published output has no {sorted(unknown)}"
            for path, indent, tag, value in lines:
                text.append(f"{indent}<{tag}>{gpu.xml.get(path, value)}</{tag}>" if path else indent)
        return "\n".join([*text, "</nvidia_smi_log>", ""])

    def query(self, columns):
        """The rows of `--query-gpu` for counters of throttling; those of a stage that ended have what it added."""
        lines = [", ".join(name if name in ("index", "uuid") else f"{name} [us]" for name in columns)]
        for gpu in self.gpus:
            cells = {"index": gpu.index, "uuid": gpu.uuid}
            for name in columns[2:]:
                kind = name.partition(".")[2]
                before = gpu.xml.get(_COUNTER.format(_IN_LOG.get(kind, kind)), "0 us").split()[0]
                cells[name] = f"{int(before) + self.throttled.get(gpu.index, {}).get(_IN_LOG.get(kind, kind), 0)} us"
            lines.append(", ".join(str(cells[name]) for name in columns))
        return "\n".join(lines)

    def link_states(self):
        lines = []
        for gpu in self.gpus:
            lines.append(self._header(gpu))
            for number, link in gpu.links.items():
                lines.append(f"\t Link {number}: {'<inactive>' if link.get('state') == 'inactive' else '53.125 GB/s'}")
        return "\n".join(lines)

    def link_errors(self):
        lines = []
        for gpu in self.gpus:
            lines.append(self._header(gpu))
            for number, link in gpu.links.items():
                if link.get("state") != "inactive":
                    lines += [
                        f"\t Link {number}: Malformed packet Errors: 0",
                        f"\t Link {number}: Rx Errors: {link.get('errors', 0)}",
                        f"\t Link {number}: Total link recovery events: {link.get('recoveries', 0)}",
                    ]
        return "\n".join(lines)

    def _header(self, gpu):
        return f"GPU {gpu.index}: NVIDIA {self.model.upper()} (UUID: {gpu.uuid})"

    def imex_nodes(self):
        """The table of `nvidia-imex-ctl -N`; None where the daemon does not answer."""
        if self.imex != "domain" or self.imex_service != "active":
            return None
        lines = [
            f"Node #{number:<3} {'*' if address == self.address else '-'} {address} "
            f"{'*' if address == self.address else ' '} - {state:<20} - Version: 580.173.02"
            for number, (address, state) in enumerate(self.peers)
        ]
        is_up = all(state == "READY" for _address, state in self.peers)
        return "\n".join(["Nodes:", *lines, "", f"Domain State: {'UP' if is_up else 'DEGRADED'}", ""])

    def services(self):
        states = {"chronyd": "active", "nvidia-persistenced": "active", "sshd": "active"}
        if self.imex != ABSENT:
            states["nvidia-imex"] = self.imex_service if self.imex == "domain" else "inactive"
        return "\n".join(f"{name}.service loaded {state} running {name}" for name, state in states.items())

    def write_files(self, root):
        """The files of the machine that its facts read."""
        files = {
            "etc/machine-id": f"{random.Random(self.name).getrandbits(128):032x}",
            "sys/class/dmi/id/product_serial": f"S-{self.name}",
            "sys/class/dmi/id/product_name": f"NVIDIA {self.model.upper()} NVL72",
            "etc/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n',
            "proc/sys/kernel/osrelease": "6.8.0-1028-nvidia-64k",
            "etc/nvidia-imex/nodes_config.cfg": "\n".join(address for address, _ in self.peers),
        }
        for path, text in files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
