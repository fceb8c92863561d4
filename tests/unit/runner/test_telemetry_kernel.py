"""The kernel's log: what a line means, what the kernel itself wrote, and why it cannot be read.

Lines: XID and SXID as in leptonai/gpud components/accelerator/nvidia/error/{xid,sxid}/README.md (commit 211f86c7);
amdgpu_ras.c, amdgpu_device.c and habanalabs/common/device.c of Linux; mlx5 as public logs of ConnectX-5 and later
show it; EDAC, MCE and AER as drivers/edac/edac_mc.c, mce/core.c and drivers/pci/pcie/aer.c print them.
"""

import os
import time
from pathlib import Path

import pytest
from gpuval_runner.telemetry import kernel_log
from gpuval_runner.telemetry.events import KernelEvent, KernelLogReader, classify

FALLEN = "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (FALLEN, KernelEvent("xid", 79, "0000:91:00.0")),
        ("NVRM: Xid (PCI:0000:cb:00): 13, pid=1, name=x, Graphics Exception", KernelEvent("xid", 13, "0000:cb:00.0")),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed", KernelEvent("xid", 154, "0000:01:00.0")),
        (
            "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
            KernelEvent("sxid", 20034, "0000:06:00.0"),
        ),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Severity 1 Engine instance 62", None),  # goes on from above
        (
            "amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
            KernelEvent("ras", None, "0000:c3:00.0"),
        ),
        (
            "amdgpu 0000:c3:00.0: amdgpu: {3}socket: 0, 4 new correctable hardware errors detected in umc block",
            KernelEvent("ras_corrected", None, "0000:c3:00.0"),
        ),
        (
            "amdgpu 0000:c3:00.0: amdgpu: socket: 0, die: 1, 1 new deferred hardware errors detected in umc block",
            KernelEvent("ras", None, "0000:c3:00.0"),
        ),
        ("amdgpu 0000:c3:00.0: amdgpu: 0 deferred hardware errors detected in umc block", None),
        (
            "amdgpu 0000:dd:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
            KernelEvent("ras", None, "0000:dd:00.0"),
        ),
        ("[drm] RAS event of type ERREVENT_ATHUB_INTERRUPT detected!", KernelEvent("ras")),
        (
            "amdgpu 0000:c3:00.0: amdgpu: GPU reset for gfx RAS poison consumption is issued!",
            KernelEvent("ras", None, "0000:c3:00.0"),
        ),
        ("amdgpu: RAS poison consumption, fall back to gpu reset flow: client id 10", KernelEvent("ras")),
        ("amdgpu 0000:c3:00.0: amdgpu: poison is consumed by gfx, GPU reset", KernelEvent("ras", None, "0000:c3:00.0")),
        ("amdgpu 0000:c3:00.0: amdgpu: Fatal error during GPU init", KernelEvent("ras", None, "0000:c3:00.0")),
        (
            "amdgpu 0000:c3:00.0: amdgpu: Saved bad pages 257 reaches threshold value 256",
            KernelEvent("ras", None, "0000:c3:00.0"),
        ),
        ("amdgpu 0000:c3:00.0: amdgpu: RAS records:300 exceed threshold:256", KernelEvent("ras", None, "0000:c3:00.0")),
        ("amdgpu 0000:c3:00.0: amdgpu: RAS records:231 exceeds 90% of threshold:256", None),
        ("amdgpu: qcm fence wait loop timeout expired", KernelEvent("ras")),
        ("[drm:amdgpu_dm_commit_planes [amdgpu]] *ERROR* Waiting for fences timed out!", KernelEvent("ras")),
        (
            "amdgpu 0000:1b:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0xbaa000000000080b",
            KernelEvent("ras", None, "0000:1b:00.0"),
        ),
        (
            "amdgpu 0000:1b:00.0: amdgpu: [Hardware Error]: ACA[01/02].STATUS=0x9820000000000150",
            KernelEvent("ras_corrected", None, "0000:1b:00.0"),
        ),
        ("amdgpu 0000:1b:00.0: amdgpu: [Hardware Error]: ACA[01/02].CONTROL=0x0000000000000001", None),
        ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", KernelEvent("xid", 79, "0000:01:00.0")),
        (
            "NVRM: The NVIDIA GPU 0000:9d:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus",
            KernelEvent("xid", 79, "0000:9d:00.0"),
        ),
        ("NVRM: GPU has fallen off the bus.", KernelEvent("xid", 79)),
        ("amdgpu 0000:c3:00.0: amdgpu: 0 correctable hardware errors detected in umc block", None),
        ("amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block", None),
        ("amdgpu 0000:05:00.0: amdgpu: GPU reset begin!. Source:  4", KernelEvent("ras", None, "0000:05:00.0")),
        ("habanalabs 0000:33:00.0: Going to reset device", KernelEvent("ras", None, "0000:33:00.0")),
        ("mlx5_core 0000:01:00.0 enp1s0f0: Link down", KernelEvent("link_flap", None, "0000:01:00.0")),
        ("mlx5_core 0000:01:00.0 enp1s0f0: Link up", None),
        ("bnxt_en 0000:a1:00.1 ens2: NIC Link is Down", KernelEvent("link_flap", None, "0000:a1:00.1")),
        (
            "mlx5_core 0000:01:00.0: Port module event: module 0, Cable unplugged",
            KernelEvent("link_flap", None, "0000:01:00.0"),
        ),
        ("veth7ab59b6 (unregistering): left allmulticast mode", None),
        ("Out of memory: Killed process 4321 (python) total-vm:1kB", KernelEvent("oom")),
        ("Memory cgroup out of memory: Killed process 4321 (python)", KernelEvent("oom")),
        ("mce: [Hardware Error]: Machine check events logged", KernelEvent("mce")),
        ("EDAC MC0: 1 UE on DIMM_0_CH0 (mc:0 page:0x12ab offset:0x50 grain:8)", KernelEvent("mce")),
        ("EDAC MC: Ver: 3.0.0", None),
        (
            "nvme 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            KernelEvent("aer", None, "0000:01:00.0"),
        ),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05", None),
        ("python[12]: NVRM Xid 79", None),
        ("", None),
    ],
)
def test_what_a_line_means(line, event):
    assert classify(line) == event


def test_which_xids_are_critical():
    def critical(number):
        return classify(f"NVRM: Xid (PCI:0000:91:00): {number}, x").critical

    assert not any(map(critical, (13, 31, 43, 45, 63, 68, 92, 109)))
    assert all(map(critical, (48, 62, 64, 74, 79, 94, 95, 119, 140)))


@pytest.mark.parametrize("number", range(144, 150))
@pytest.mark.parametrize(("severity", "is_critical"), [("Fatal   ", True), ("Nonfatal", False), ("", True)])
def test_an_xid_of_nvlink_5_is_critical_by_its_text(number, severity, is_critical):
    line = f"NVRM: Xid (PCI:0018:01:00): {number}, NETIR_LINK_EVT  {severity} XC0 i0 Link 09 (0x025525c6 0x00000000)"
    event = classify(line)
    assert (event.kind, event.number, event.address) == ("xid", number, "0018:01:00.0")
    assert event.critical == is_critical


@pytest.mark.parametrize(
    ("text", "is_critical"),
    [
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", False),
        ("pid=1, name=x, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", False),
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", True),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", True),
        ("name=to 0x0 (None), GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", True),
        ("GPU recovery action changed", True),
    ],
)
@pytest.mark.parametrize("number", [154, 79])
def test_a_recovery_that_is_not_needed_any_more_is_not_critical(number, text, is_critical):
    event = classify(f"NVRM: Xid (PCI:0000:01:00): {number}, {text}")
    assert (event.kind, event.number) == ("xid", number)
    assert event.critical == (is_critical or number != 154)


UNPLUGGED = "mlx5_core 0000:01:00.0: Port module event: module 0, Cable unplugged"
DOWN, UP = "mlx5_core 0000:01:00.0 enp1s0f0: Link down", "mlx5_core 0000:01:00.0 enp1s0f0: Link up"
PLUGGED = "mlx5_core 0000:01:00.0: Port module event: module 0, Cable plugged"


@pytest.mark.parametrize(
    ("unlinked", "lines", "flaps"),
    [
        ((), [UNPLUGGED], 1),
        (("0000:01:00.0",), [UNPLUGGED, DOWN], 0),
        (("0000:02:00.0",), [UNPLUGGED], 1),
        (("0000:01:00.0",), [UNPLUGGED, UP, DOWN], 1),
        (("0000:01:00.0",), [PLUGGED, UNPLUGGED], 1),
        (("0000:01:00.0",), ["bnxt_en 0000:a1:00.1 ens2: NIC Link is Down"], 1),
    ],
)
def test_a_port_without_a_link_before_the_stage_loses_none_in_it(unlinked, lines, flaps):
    found = KernelLogReader(unlinked).read(lines)
    assert [event.kind for event, _ in found] == ["link_flap"] * flaps


def test_only_xids_of_nvlink_5_are_excused_by_their_text():
    assert classify("NVRM: Xid (PCI:0000:91:00): 79, pid=1, name=nonfatal, GPU has fallen off the bus").critical
    assert classify("NVRM: Xid (PCI:0000:91:00): 145, RLW_REMAP Fatal XC0 i0 Link 02 (Nonfatal)").critical
    assert classify(
        "NVRM: Xid (PCI:0000:91:00): 145, pid=1, name=A Nonfatal XC0, RLW_REMAP Fatal XC0 i0 Link 2"
    ).critical
    assert not classify("NVRM: Xid (PCI:0000:5f:00): 145, RLW_REMAP Nonfatal").critical


def test_a_dump_of_an_error_bank_is_what_its_status_says():
    device = "amdgpu 0000:1b:00.0: amdgpu: [Hardware Error]: "
    head = f"{device}Accelerator Check Architecture events logged"

    def kinds(*status):
        lines = [head, f"{device}ACA[01/01].CONTROL=0x1", *status, f"{device}ACA[01/01].ADDR=0x0"]
        return [event.kind for event, _text in KernelLogReader().read(lines)]

    assert kinds(f"{device}ACA[01/01].STATUS=0xbaa000000000080b") == ["ras"]
    assert kinds(f"{device}ACA[01/01].STATUS=0x9820100000000150") == ["ras"], "deferred"
    assert kinds(f"{device}ACA[01/01].STATUS=0x9820000000000150") == ["ras_corrected"]
    assert kinds() == ["ras"], "a head without a status counts"


@pytest.mark.parametrize(
    ("words", "flaps"),
    [
        ("up", 0),
        ("down", 1),
        ("down up", 1),
        ("up up", 1),
        ("up up up", 2),
        ("up down up", 1),
        ("down up down up", 2),
        ("down up up", 2),
    ],
)
def test_a_link_that_comes_up_again_went_down(words, flaps):
    reader, found = KernelLogReader(), []
    for word in words.split():  # one look each
        found += reader.read(
            [f"mlx5_core 0000:01:00.0 ib0: Link {word}", f"bnxt_en 0000:a1:00.1 eth{word}: NIC Link is Up"]
        )
    assert [event for event, text in found if "mlx5" in text] == [
        KernelEvent("link_flap", None, "0000:01:00.0")
    ] * flaps


@pytest.fixture
def log():
    """A log whose writer is the test, as /dev/kmsg gives its records."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield kernel_log.KernelLog(reading), lambda data: os.write(writing, data)
    os.close(reading)
    os.close(writing)


def test_only_what_the_kernel_wrote_is_believed(log):
    reader, write = log
    write(f"3,1234,5678,-;{FALLEN}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:91:00.0\n".encode())
    write(f"11,1235,5679,-;{FALLEN}\n".encode())  # facility 1: a user wrote it to /dev/kmsg
    write(f"30,1236,5680,-;{FALLEN}\n".encode())  # facility 3: a daemon
    write(b"4,1237,5681,c,caller=T1;tab\\x09here\n")
    assert reader.read() == [FALLEN, "tab\there"]
    assert reader.read() == []


def test_rubbish_is_passed_over_and_halves_are_put_together(log):
    reader, write = log
    write(b"\xff\xfe\x00nonsense\n;;;,,,\n-1,2,3,-;negative\n99999999999999,1,1,-;huge\n3,1,2,-;first ")
    assert reader.read() == []
    write(b"half\n")
    assert reader.read() == ["first half"]
    write(b"x" * 20_000)
    assert reader.read() == [] and reader.lost


def test_a_flood_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_log, "MAX_RECORDS", 3)
    place = tmp_path / "kmsg"
    place.write_bytes(b"3,1,2,-;again\n" * 10_000)
    handle = os.open(place, os.O_RDONLY)
    reader = kernel_log.KernelLog(handle)
    assert 0 < len(reader.read()) <= 3 * kernel_log.MAX_RECORD_BYTES and reader.more
    while reader.more:
        reader.read()
    assert not reader.lost
    os.close(handle)


def test_the_log_is_read_from_its_end(tmp_path):
    place = tmp_path / "kmsg"
    place.write_bytes(b"3,1,2,-;before\n")
    reader = kernel_log.KernelLog(kernel_log.open_at_end(place))
    with place.open("ab") as stream:
        stream.write(b"3,2,3,-;after\n")
    assert reader.read() == ["after"]


@pytest.mark.parametrize(
    ("error", "words"), [(PermissionError(1, "x"), "not permitted"), (PermissionError(13, "x"), "not permitted")]
)
def test_why_it_cannot_be_read(tmp_path, monkeypatch, error, words):
    with pytest.raises(kernel_log.NoLogError, match="not there"):
        kernel_log.open_at_end(tmp_path / "kmsg")

    def refuse(*_):
        raise error

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(kernel_log.NoLogError, match=words):
        kernel_log.open_at_end()


def test_journal_and_dmesg_give_the_kernels_own_lines():
    journal = (
        '{"MESSAGE":"one","SYSLOG_FACILITY":"0","PRIORITY":"3"}\n'
        '{"MESSAGE":"by a user","SYSLOG_FACILITY":"1"}\n'
        '{"MESSAGE":[98,105,110],"SYSLOG_FACILITY":"0"}\nnot json\n{"MESSAGE":"two"}\n'
    )
    assert kernel_log.parse_journal(journal).texts == ["one", "two"]
    dmesg = "<6>[    1.000000] old\n<3>[  100.500000] new\n<12>[  101.000000] by a user\n<3>[  102.0][  T1] thread\n?\n"
    assert kernel_log.parse_dmesg(dmesg, 100.0) == kernel_log.Messages(["new", "thread"], 102.0)
    assert kernel_log.parse_dmesg(dmesg, 100.5) == kernel_log.Messages(["thread"], 102.0)  # from where it stopped
    assert kernel_log.parse_dmesg("", 100.0) == kernel_log.Messages([])


def test_the_journal_is_read_from_where_it_was_left():
    journal = "".join(f'{{"MESSAGE":"{n}","__REALTIME_TIMESTAMP":"{n}500000"}}\n' for n in (100, 101, 102))
    assert kernel_log.parse_journal(journal, 100.5) == kernel_log.Messages(["101", "102"], 102.5)
    assert kernel_log.parse_journal(journal, 102.5) == kernel_log.Messages([])


def test_what_is_cut_off_is_reported(monkeypatch):
    monkeypatch.setattr(kernel_log, "MAX_TOOL_LINES", 3)
    journal = '{"MESSAGE":"x"}\n'
    assert not kernel_log.parse_journal(journal * 3).lost
    assert kernel_log.parse_journal(journal * 4).lost
    dmesg = [f"<6>[   {n}.000000] {n}" for n in range(10, 20)]
    assert kernel_log.parse_dmesg("\n".join(dmesg), 17) == kernel_log.Messages(["18", "19"], 19)  # old ones are no loss
    cut = kernel_log.parse_dmesg("\n".join(dmesg), 12)
    assert cut.texts == ["17", "18", "19"] and cut.lost
    assert kernel_log.parse_dmesg("\n".join(dmesg[-2:]), 12).lost  # the ring was overwritten since


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_a_device_in_the_logs_place_is_no_log(device):
    with pytest.raises(kernel_log.NoLogError, match="not there"):
        kernel_log.open_at_end(Path(device))


def test_a_file_in_the_logs_own_place_is_no_log(tmp_path, monkeypatch):
    place = tmp_path / "kmsg"
    place.touch()
    os.close(kernel_log.open_at_end(place))  # a stand-in by its own name
    monkeypatch.setattr(kernel_log, "KMSG", place)
    with pytest.raises(kernel_log.NoLogError, match="not there"):
        kernel_log.open_at_end(place)


def test_tools_stand_in_where_there_is_no_kmsg(tmp_path, monkeypatch):
    tool = tmp_path / "journalctl"
    tool.write_text("#!/bin/sh\nexit 1\n")
    dmesg = tmp_path / "dmesg"
    dmesg.write_text("#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1\n")
    tool.chmod(0o755)
    dmesg.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    since = kernel_log.Position(0, 100)
    with pytest.raises(kernel_log.NoLogError, match="not permitted"):
        kernel_log.by_tools(since, 10)
    dmesg.write_text(f'#!/bin/sh\nprintf "%s\\n" "<3>[  99.5] old" "<3>[  100.5] {FALLEN}"\n')
    taken, position = kernel_log.by_tools(since, 10)
    assert taken.texts == [FALLEN] and position.boot == 100.5
    assert kernel_log.by_tools(position, 10)[0].texts == []


@pytest.mark.parametrize("slow", [("journalctl", "dmesg"), ("dmesg",), ("journalctl",)])
def test_tools_get_the_time_that_is_left(tmp_path, monkeypatch, slow):
    for name in ("journalctl", "dmesg"):
        tool = tmp_path / name
        quick = "exit 1" if name == "journalctl" else f'echo "<3>[  100.5] {FALLEN}"'
        tool.write_text("#!/bin/sh\n" + ("exec sleep 60" if name in slow else quick) + "\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    begun = time.monotonic()
    if "dmesg" in slow:
        with pytest.raises(kernel_log.NoLogError, match="did not answer in time"):
            kernel_log.by_tools(kernel_log.Position(0, 100), 1.0)
    else:
        assert kernel_log.by_tools(kernel_log.Position(0, 100), 6.0)[0].texts == [FALLEN]
    assert time.monotonic() - begun < 40
