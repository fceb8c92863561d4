#!/usr/bin/env python3
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a node may work, by its last verdict in a gpuval.health/1 file or URL. Reads that file, changes nothing;
Python 3.9 or newer.

Ends with 0 if the node may work, 1 if not; without evidence with 0, since a Prolog that ends otherwise drains its node
(--strict: 1).
"""

import argparse
import contextlib
import json
import os
import socket
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path

#: A file on a server that hangs is no evidence after this time.
READ_SECONDS = 0.7
MAX_BYTES = 64 << 20
MAX_LINE = 400
VERDICTS = ("PASS", "FAIL", "INCOMPLETE")


class UsageError(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(message)


class NoEvidence(Exception):  # noqa: N818 - what there is
    pass


def main(arguments):
    strict = "--strict" in arguments
    try:
        options = parser().parse_args(arguments)
        host = socket.gethostname()
        aliases = [options.node] if options.node else [host, host.partition(".")[0]]
        entry = entry_of(read(options.file), aliases, options.max_age_days)
    except UsageError as error:
        say(f"wrong option: {error}; see gpuval-health --help", sys.stderr)
        return int(strict)
    except NoEvidence as error:
        say(f"no evidence: {error}")
        return int(strict)
    except Exception as error:  # Python's own exit code for an exception would drain the node
        say(f"no evidence: {type(error).__name__}: {error}")
        return int(strict)
    verdict, run_id, word = entry["verdict"], entry["run_id"], entry["class"]
    refused = verdict == "FAIL" or (strict and verdict != "PASS")
    if options.reason and refused:
        say(f"{run_id}:{word or verdict}", start="gpuval:")
        return 1
    text = f"{verdict} in run {run_id}" + (f" ({word})" if word else "")
    if verdict != "PASS":
        text += f": {entry['action'] or 'inspect'}: {entry['reason']}"
    say(text)
    return int(refused)


def parser():
    description = "Whether this node may work, by its last verdict of gpuval."
    arguments = Parser(prog="gpuval-health", allow_abbrev=False, description=description)
    arguments.add_argument("--file", required=True, help="the file that gpuval_health_file names, or a URL of it")
    arguments.add_argument("--node", default="", help="name of the node in the inventory (default: the host's name)")
    age = "older verdicts are no evidence (default: any age)"
    arguments.add_argument("--max-age-days", type=float, default=0, help=age)
    arguments.add_argument("--strict", action="store_true", help="end with 1 without evidence, and for INCOMPLETE")
    arguments.add_argument("--reason", action="store_true", help="print gpuval:RUN:CLASS for a node that may not work")
    return arguments


def read(path):
    """Return the JSON document at a path or URL. A thread reads it: nothing else ends a read from a hanging server."""
    lines, name = [], without_secrets(path)
    opened = opener(path)  # before the time counts: on a busy node its import may take longer than the answer

    def work():
        try:
            with opened() as stream:
                data = stream.read(MAX_BYTES + 1)
            lines.append(json.loads(data[:MAX_BYTES].decode("utf-8")))  # a larger document is cut off: no JSON
        except OSError as error:
            lines.append(NoEvidence(f"{name}: {error.strerror or error}"))
        except (ValueError, RecursionError) as error:
            lines.append(NoEvidence(f"{name} is damaged: {error}"))
        except Exception as error:  # such as a broken answer of a server
            lines.append(NoEvidence(f"{name}: {type(error).__name__}"))

    reader = threading.Thread(target=work, daemon=True)
    reader.start()
    reader.join(READ_SECONDS)
    if not lines:
        raise NoEvidence(f"{name} was not read within {READ_SECONDS} s")
    if isinstance(lines[0], NoEvidence):
        raise lines[0]
    return lines[0]


def without_secrets(path):
    """Return a path, or a URL's scheme, host and path: its user, password and signature stay out of logs."""
    scheme, mark, host = path.partition("://")
    return scheme + mark + host.partition("?")[0].rpartition("@")[2] if mark else path


def opener(path):
    """Return a function that opens a file, or a URL with https:// (http:// for tests and closed networks)."""
    if path.startswith(("https://", "http://")):
        from urllib.request import urlopen

        return lambda: urlopen(path, timeout=READ_SECONDS)  # noqa: S310 - the operator's own URL
    return lambda: Path(path).open("rb")


def entry_of(document, aliases, max_age_days):
    """Return the entry of a node, which has one of the names `aliases`. Raises NoEvidence without a recent one."""
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(nodes, dict) or document.get("schema") != "gpuval.health/1":
        raise NoEvidence("the file is none of gpuval.health/1")
    entry = next((nodes[name] for name in aliases if name in nodes), None)
    if entry is None:
        raise NoEvidence("no verdict on {}".format(" or ".join(dict.fromkeys(aliases))))
    texts = ("verdict", "run_id", "finished_at", "reason")
    is_entry = isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in texts)
    if not is_entry or entry["verdict"] not in VERDICTS:
        raise NoEvidence("the entry of the node is damaged")
    for key in ("class", "action"):
        entry[key] = entry.get(key) if isinstance(entry.get(key), str) else ""
    days = age_days(entry["finished_at"])
    if max_age_days > 0 and days > max_age_days:
        raise NoEvidence("the last verdict is {:.1f} days old (run {})".format(days, entry["run_id"]))
    return entry


def age_days(time):
    try:
        then = datetime.strptime(time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        raise NoEvidence("the time of the verdict is damaged") from None
    return (datetime.now(timezone.utc) - then).total_seconds() / 86400


def say(text, stream=None, start="gpuval: "):
    """Print one line that is safe in a log and as Slurm's reason. A full disk or closed output changes no exit code."""
    line = start + "".join(character if " " <= character <= "~" else " " for character in text)[:MAX_LINE]
    with contextlib.suppress(OSError, ValueError):
        print(line, file=stream, flush=True)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # a thread that hangs does not hold the program
