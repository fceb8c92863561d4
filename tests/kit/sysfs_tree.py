"""Trees laid out as /sys has them, with what real machines show.

* Counters, board and firmware of mlx5_0, a ConnectX-4 in use: prometheus/procfs, testdata/fixtures/sys/class.ttar.
* The forms of state, phys_state and rate, and "N/A (no PMA)": Linux, drivers/infiniband/core/sysfs.c.
* GIDs of RoCE and their types: ibv_devinfo of an H100 node's mlx5_6 in Juniper's "AI Data Center Network with EVPN",
  appendix D; of InfiniBand: Linux, Documentation/ABI/stable/sysfs-class-infiniband.
* Links of PCIe: Linux, Documentation/ABI/testing/sysfs-bus-pci; ACS: include/uapi/linux/pci_regs.h.
"""

from pathlib import Path

NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
ROCE_GIDS = [
    ("fe80:0000:0000:0000:a288:c2ff:fe3b:506a", "IB/RoCE v1"),
    ("fe80:0000:0000:0000:a288:c2ff:fe3b:506a", "RoCE v2"),
    ("0000:0000:0000:0000:0000:ffff:0ac8:010a", "IB/RoCE v1"),
    ("0000:0000:0000:0000:0000:ffff:0ac8:010a", "RoCE v2"),
]
IB_GIDS = [("fe80:0000:0000:0000:0a7f:bc12:45ef:d23b", "IB/RoCE v1")]
MLX5_COUNTERS = {
    "counters": {
        "symbol_error": 0, "link_error_recovery": 0, "link_downed": 0, "port_rcv_errors": 0, "port_xmit_wait": 0,
        "port_rcv_remote_physical_errors": 0, "local_link_integrity_errors": 0, "excessive_buffer_overrun_errors": 0,
        "port_xmit_discards": 0, "port_rcv_data": 18126345378, "port_xmit_data": 2880761508848,
    },
    "hw_counters": {
        "duplicate_request": 41, "implied_nak_seq_err": 0, "lifespan": 10, "local_ack_timeout_err": 131,
        "out_of_buffer": 0, "out_of_sequence": 1, "packet_seq_err": 1, "req_cqe_error": 3481, "resp_cqe_error": 8109,
        "rnr_nak_retry_err": 0, "roce_adp_retrans": 99,
    },
}  # fmt: skip


class Tree:
    """The folder ``sys`` of a machine's tree, which is at ``root``."""

    def __init__(self, root: Path) -> None:
        self.root, self.sys = root, root / "sys"

    def write(self, name: str, text: object) -> None:
        path = self.sys / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())

    def pci(self, *way: str, **files: object) -> None:
        """A device at the end of a way through bridges, as /sys/bus/pci/devices links to it."""
        place = "/".join(("devices", *way))
        self.sys.joinpath(place).mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            self.write(f"{place}/{name}", value)
        link = self.sys / "bus/pci/devices" / way[-1]
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(self.sys / place)

    def link(self, now="32.0 GT/s PCIe", width=16, most="32.0 GT/s PCIe", most_width=16) -> dict:
        return {
            "current_link_speed": now, "current_link_width": width,
            "max_link_speed": most, "max_link_width": most_width,
        }  # fmt: skip

    def rdma(self, name="mlx5_0", pci=None, board="SM_2001000001034", firmware="14.28.2006", interface=None) -> None:
        folder = f"class/infiniband/{name}"
        self.write(f"{folder}/fw_ver", firmware)
        self.write(f"{folder}/board_id", board)
        self.write(f"{folder}/hca_type", "MT4118")
        if pci:
            device = self.sys / folder / "device"
            device.symlink_to((self.sys / "bus/pci/devices" / pci).resolve())
            if interface:
                self.write(f"bus/pci/devices/{pci}/net/{interface}/mtu", 9000)

    def port(self, name="mlx5_0", number=1, **files: object) -> None:
        folder = f"class/infiniband/{name}/ports/{number}"
        gids = files.pop("gids", ())
        counters = files.pop("counters", MLX5_COUNTERS)
        usual = {
            "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand",
        }  # fmt: skip
        for file, value in {**usual, **files}.items():
            self.write(f"{folder}/{file}", value)
        for index, (gid, kind) in enumerate(gids):
            self.write(f"{folder}/gids/{index}", gid)
            self.write(f"{folder}/gid_attrs/types/{index}", kind)
        for index in (len(gids), len(gids) + 1, 10):
            self.write(f"{folder}/gids/{index}", NO_GID)
        for group, values in counters.items():
            for counter, value in values.items():
                self.write(f"{folder}/{group}/{counter}", value)


def config_space(control: int, at: int = 0x148, size: int = 4096) -> bytes:
    """A bridge's configuration space with error reporting first and access control at ``at``."""
    space = bytearray(size)
    if size > 0x100:
        space[0x100:0x104] = (0x0001 | 2 << 16 | at << 20).to_bytes(4, "little")
        space[at : at + 8] = (0x000D | 1 << 16).to_bytes(4, "little") + b"\x5f\x00" + control.to_bytes(2, "little")
    return bytes(space)
