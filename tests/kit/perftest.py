"""Stand-ins for perftest's tools: options, exchange over TCP and printed tables of version 6.06, without a device.

Speeds are figures of public reports: 392.8 Gb/s on a port of 400 Gb/s (Azure's health checks), reads of 1.79 us
(ConnectX). What each device does is in a file beside the tools: ``share`` of its speed, ``hang``, ``fail`` with a
text, ``network`` that others are not in, ``errors``: counters in sysfs that a test raises.
"""

import json
import sys
from pathlib import Path

TOOLS = ("ib_write_bw", "ib_send_bw", "ib_read_lat", "ib_write_lat")
SPEED = 392.8

PROGRAM = r"""
import getopt, json, socket, sys, time
from pathlib import Path

here = Path(__file__).resolve().parent
asked = json.loads((here / "behaviour.json").read_text())
tool = Path(__file__).stem
is_latency = tool.endswith("_lat")
long = ["help", "report_gbits", *asked["options"]]
try:
    given, hosts = getopt.gnu_getopt(sys.argv[1:], "d:i:p:Fx:s:q:D:f:n:" + ("" if is_latency else "b"), long)
except getopt.GetoptError as error:
    print(f"{tool}: unrecognized option '{error.opt}'\n Invalid Command or flag.", file=sys.stderr)
    sys.exit(1)
given = dict(given)
if "--help" in given:
    print("Usage:\n " + "\n ".join(f" --{name.rstrip('=')}" for name in long))
    sys.exit(1)
device, seconds = given["-d"], int(given.get("-D", 0))
own = asked["devices"].get(device)
if own is None:
    print(" Did not detect devices \n If device exists, check if driver is up")
    print(" Unable to find the Infiniband/RoCE device")
    sys.exit(1)
assert is_latency or seconds > 2 * int(given["-f"]), "please check that DURATION > 2*MARGIN"
if any(name.startswith("--use_") for name in given) and own.get("gpu_fail"):
    print("initializing CUDA\n" + own["gpu_fail"], file=sys.stderr)
    sys.exit(1)
with socket.socket() as one:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hosts:
        one.connect((hosts[0], int(given["-p"])))
    else:
        one.bind(("", int(given["-p"])))
        one.listen(1)
        print("\n************************************\n* Waiting for client to connect... *")
        one, _ = one.accept()
    own = {**own, "options": sorted(set(given) - {"-d", "-i", "-x"})}
    one.sendall(json.dumps(own).encode() + b"\n")
    other = json.loads(one.makefile().readline())
    assert own["options"] == other["options"], "both ends need the same options"
    if own.get("network") != other.get("network"):
        print(" Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81")
        sys.exit(1)
    if own.get("hang") or other.get("hang"):
        time.sleep(600)
    if own.get("fail") or other.get("fail"):
        print(own.get("fail") or other["fail"])
        sys.exit(1)
    for name, more in own.get("errors", {}).items():
        counter = Path(asked["sysfs"], "class/infiniband", device, "ports", given["-i"], name)
        counter.write_text(f"{int(counter.read_text()) + more}\n")
share = min(own.get("share", 1), other.get("share", 1))
line = "-" * 87
print(f"{line}\n                    {tool} Test\n Dual-port       : OFF\t\tDevice         : {device}")
print(f" Link type       : IB\n{line}")
if is_latency:
    print(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
          "   99% percentile[usec]   99.9% percentile[usec] ")
    print("Conflicting CPU frequency values detected: 2400.000000 != 1873.463000. CPU Frequency is not max.")
    print(f" 8       {given['-n']}          1.76           6.12         1.79 \t             1.80           0.06   \t\t"
          f"{1.88 / share:.2f} \t\t{6.12 / share:.2f}   ")
else:
    speed = asked["speed"] * share * (1.97 if "-b" in given else 1)
    print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
    print(f" {given['-s']}    140521           0.00               {speed:.2f} \t\t   0.046826")
print(line)
"""


def install(
    folder: Path, devices: dict[str, dict], *, options: tuple[str, ...] = (), sysfs: Path | None = None
) -> None:
    """Put the tools into a folder for PATH; ``options`` are further long ones that they were built with.

    Each file is replaced whole: a test changes the behaviour of tools that are being started (ETXTBSY otherwise).
    """
    folder.mkdir(parents=True, exist_ok=True)
    behaviour = {"devices": devices, "options": options, "speed": SPEED, "sysfs": str(sysfs or "")}
    texts = dict.fromkeys(TOOLS, f"#!{sys.executable} -S\n{PROGRAM}") | {"behaviour.json": json.dumps(behaviour)}
    for name, text in texts.items():
        new = folder / f".{name}"
        new.write_text(text)
        new.chmod(0o755)
        new.replace(folder / name)
