"""A box in which a whole run happens: processes, ports and temporary folders of its own, all seen from outside.

Namespaces of the kernel (processes, mounts, network) make it, so that what others do on the machine does not show.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.kit.fleet import NODE_PYTHON, ROOT, until
from tests.kit.processes import all_pids, read

TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
#: podman makes its table of locks when it is first asked anything on a machine, and keeps it.
OF_ENGINES = {"/dev/shm/libpod_lock", "/dev/shm/libpod_rootless_lock_0"}
REAPER = "import signal, time; signal.signal(signal.SIGCHLD, signal.SIG_IGN); time.sleep(1800)"
LISTENING = "0A"


class Box:
    """`kept` are folders that stay visible where they lie, even below a temporary folder."""

    def __init__(self, *kept):
        namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = f"{self._mounts(kept)}\nip link set lo up\n: >/tmp/ready\nexec {sys.executable} -c '{REAPER}'"
        self._outer = subprocess.Popen([*namespaces, "sh", "-ec", script], stdin=subprocess.DEVNULL)
        self.pid = until(self._inner, "the box")
        until((self._root / "tmp/ready").exists, "the box's folders")
        (self._root / "tmp/ready").unlink()

    @property
    def prefix(self):
        """What to put before a command to run it inside."""
        return ("nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--")

    def close(self):
        self._outer.send_signal(signal.SIGKILL)
        self._outer.wait(60)

    def processes(self):
        """Command lines of all that runs inside but its first process."""
        own = self._namespace(self.pid)
        inside = [pid for pid in all_pids() if pid != self.pid and self._namespace(pid) == own]
        return sorted(read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace") for pid in inside)

    def ports(self):
        """TCP ports that something listens on."""
        lines = (
            line.split() for name in ("tcp", "tcp6") for line in read(self.pid, f"net/{name}").decode().splitlines()
        )
        return sorted(int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == LISTENING)

    def temporary_files(self):
        """Everything in the temporary folders, except what was kept visible."""
        found = []
        for folder in TEMPORARY:
            for where, folders, files in os.walk(self._root / folder.lstrip("/")):
                here = "/" + str(Path(where).relative_to(self._root))
                folders[:] = [name for name in folders if f"{here}/{name}" not in self._shown]
                found += [f"{here}/{name}" for name in folders + files]
        return sorted(set(found) - self._above - OF_ENGINES)

    @property
    def _root(self):
        return Path(f"/proc/{self.pid}/root")

    def _inner(self):
        children = read(self._outer.pid, f"task/{self._outer.pid}/children").split()
        return int(children[0]) if children else None

    @staticmethod
    def _namespace(pid):
        try:
            return Path(f"/proc/{pid}/ns/pid").readlink()
        except OSError:
            return None

    def _mounts(self, kept):
        """Shell commands: empty temporary folders, with the kept ones and the programs shown in them again."""
        folders = {Path(path).resolve() for path in (*kept, ROOT, sys.prefix, sys.base_prefix, NODE_PYTHON.parents[1])}
        folders = sorted(path for path in folders if str(path).startswith(tuple(f"{name}/" for name in TEMPORARY)))
        self._shown = {str(path) for path in folders}
        self._above = {str(parent) for path in folders for parent in path.parents}
        lines = ["mount -t tmpfs none /mnt"]
        for number, path in enumerate(folders):
            lines += [f"mkdir /mnt/{number}", f"mount --rbind '{path}' /mnt/{number}"]
        lines += [f"mount -t tmpfs -o mode=1777 none {name}" for name in TEMPORARY]
        for number, path in enumerate(folders):
            lines += [f"mkdir -p '{path}'", f"mount --rbind /mnt/{number} '{path}'"]
        return "\n".join(lines)
