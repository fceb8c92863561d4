"""NVIDIA GPUs by NVML, the driver's own library, through ctypes: no process is started and no text is parsed.

Names, numbers and structures are those of nvml.h, as in nvidia-ml-py 13.615.71 (PyPI). A call that the GPU or an older
driver does not support gives no value and a reason.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from .nvidia_gpus import NvidiaSmi, add_throttle_counters, throttle
from .nvml_fabric import fabric_text, read_fabric
from .source import Counters, Sample, Source, SourceError, known
from .values import identifier

LIBRARY = "libnvidia-ml.so.1"
#: Seconds between reads of values that hardly change.
SLOW_SECONDS = 5.0

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 0, 2, 3, 4, 13
GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND = 15, 16, 28
GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})
#: Return codes of a good GPU that does not support a value; any other code is a driver error, no excuse for a gap.
CANNOT = frozenset({NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND})
#: Reason for a link value of 0 from a virtual function, whose link status is reserved (PCIe, SR-IOV).
VIRTUAL = "not supported by a virtual function, which reports 0"
REASONS = {
    1: "NVML is not initialised",
    2: "invalid argument",
    3: "not supported by the GPU",
    4: "not permitted",
    6: "not found",
    9: "the NVIDIA driver is not loaded",
    10: "timed out",
    12: "the driver's library was not found",
    13: "this driver's NVML does not have it",
    15: "the GPU is lost",
    16: "the GPU needs a reset",
    17: "the GPU may not be used (operating system or control group)",
    18: "driver and NVML are of different versions: reboot or reload the driver",
    20: "NVML has no memory",
    28: "the GPU was not found",
    999: "unknown error of the driver",
}

FI_MEMORY_TEMP, FI_NVLINK_LINK_COUNT = 82, 91
MAX_LINKS = 36
#: Error counters of NVLink 1 to 4 (up to Hopper), as in nvidia-smi nvlink -e: replay, recovery, CRC of flits.
LINK_COUNTERS = (0, 1, 2)
#: Counters of corrected errors (nvidia-smi nvlink -ec): CRC and ECC of data. On good H200 both rise by hundreds a link
#: and minute while the other counters stay at 0.
LINK_CORRECTED = (3, 4)
#: Error counters of NVLink 5, as field values with the link as scope: malformed packets, buffer overruns, errors,
#: remote and general errors received, local integrity, recoveries, errors that were left after correction.
LINK_FIELDS = (206, 207, 208, 209, 210, 211, 215, 219)


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _MarginTemperature(ctypes.Structure):  # nvmlMarginTemperature_v1_t
    _fields_ = [("version", ctypes.c_uint), ("margin", ctypes.c_int)]

    def __init__(self) -> None:
        super().__init__(version=ctypes.sizeof(self) | 1 << 24)


class _PciInfo(ctypes.Structure):  # nvmlPciInfo_t, version 3
    _fields_ = [
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class _Value(ctypes.Union):
    _fields_ = [
        ("double", ctypes.c_double),
        ("unsigned_int", ctypes.c_uint),
        ("unsigned_long", ctypes.c_ulong),
        ("unsigned_long_long", ctypes.c_ulonglong),
        ("signed_long_long", ctypes.c_longlong),
        ("signed_int", ctypes.c_int),
        ("unsigned_short", ctypes.c_ushort),
    ]


class _FieldValue(ctypes.Structure):
    _fields_ = [
        ("field_id", ctypes.c_uint32),
        ("scope_id", ctypes.c_uint32),
        ("timestamp", ctypes.c_int64),
        ("latency_usec", ctypes.c_int64),
        ("value_type", ctypes.c_uint),
        ("result", ctypes.c_uint),
        ("value", _Value),
    ]


VALUE_TYPES = tuple(field[0] for field in _Value._fields_)  # in the order of nvmlValueType_t


class NvmlCall(NamedTuple):
    """The NVML call for a reading: function, arguments before the last, type (`kind`) and field (`part`) of the last,
    which is the output. The value is multiplied by `times` and divided by `per` to the base unit."""

    function: str
    arguments: tuple[int, ...] = ()
    kind: Any = ctypes.c_uint
    part: str = "value"
    times: int = 1
    per: int = 1


TEMPERATURE_GPU, CLOCK_SM, CLOCK_MEM = 0, 1, 2
ECC_CORRECTED, ECC_UNCORRECTED, ECC_VOLATILE = 0, 1, 0
CALLS = {
    "temperature_celsius": NvmlCall("nvmlDeviceGetTemperature", (TEMPERATURE_GPU,)),
    "power_watts": NvmlCall("nvmlDeviceGetPowerUsage", per=1000),
    "power_limit_watts": NvmlCall("nvmlDeviceGetEnforcedPowerLimit", per=1000),
    "sm_clock_hertz": NvmlCall("nvmlDeviceGetClockInfo", (CLOCK_SM,), times=1_000_000),
    "memory_clock_hertz": NvmlCall("nvmlDeviceGetClockInfo", (CLOCK_MEM,), times=1_000_000),
    "memory_used_bytes": NvmlCall("nvmlDeviceGetMemoryInfo", (), _Memory, "used"),
    "utilisation_ratio": NvmlCall("nvmlDeviceGetUtilizationRates", (), _Utilization, "gpu", per=100),
    "temperature_margin_celsius": NvmlCall("nvmlDeviceGetMarginTemperature", (), _MarginTemperature, "margin"),
    "throttle": NvmlCall("nvmlDeviceGetCurrentClocksEventReasons", (), ctypes.c_ulonglong),
    "pcie_width": NvmlCall("nvmlDeviceGetCurrPcieLinkWidth"),
    "pcie_generation": NvmlCall("nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie_replays": NvmlCall("nvmlDeviceGetPcieReplayCounter"),
    "ecc_corrected": NvmlCall("nvmlDeviceGetTotalEccErrors", (ECC_CORRECTED, ECC_VOLATILE), ctypes.c_ulonglong),
    "ecc_uncorrected": NvmlCall("nvmlDeviceGetTotalEccErrors", (ECC_UNCORRECTED, ECC_VOLATILE), ctypes.c_ulonglong),
}
#: NVML functions by their present names, with the names that they have in drivers before 535.
EARLIER = {"nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons"}
SELDOM_SAMPLED = ("power_limit_watts", "pcie_width", "pcie_generation")
COUNTED = ("ecc_corrected", "ecc_uncorrected", "pcie_replays", "pcie_width")
SAMPLED = tuple(name for name in CALLS if name not in (*SELDOM_SAMPLED, *COUNTED))


def reason(code: int) -> str:
    """Return the meaning of a return code of NVML as text."""
    return REASONS.get(code, f"NVML error {code}")


class Nvml(Source):
    """Readings of NVIDIA GPUs by NVML. Raises ``SourceError`` if there is no driver."""

    name = "nvml"

    def __init__(self, library: str = LIBRARY) -> None:
        super().__init__()
        #: Return code of the last call that found its GPU lost.
        self._gone = SUCCESS
        try:
            self._library = ctypes.CDLL(library)
        except OSError:
            raise SourceError(f"{library} cannot be loaded") from None
        code = self._call("nvmlInit_v2")
        if code:
            raise SourceError(f"NVML cannot be used: {reason(code)}")
        self._slow: dict[int, tuple[float, dict[str, Any]]] = {}
        self._handles: dict[int, ctypes.c_void_p] = {}
        #: For each GPU, by index, of which NVML gives no handle: NVML's return code.
        self.lost: dict[int, int] = {}
        self._enumerate()

    def sample(self) -> dict[int, Sample]:
        if not self._handles and not self.lost:
            raise SourceError("NVML lists no GPU that can be read")
        return {index: self._sample(index, handle) for index, handle in self._handles.items()}

    def counters(self, seconds: float) -> dict[int, Counters]:
        by_gpu = self.counters_at_once()
        add_throttle_counters(by_gpu, self.absent, seconds)
        return by_gpu

    def counters_at_once(self) -> dict[int, Counters]:
        self._enumerate()
        by_gpu = {index: self._counters(index, handle) for index, handle in self._handles.items()}
        for index, code in self.lost.items():
            by_gpu[index] = {"lost": True} if code in GONE else {"lost": True, "refused": True}
        return by_gpu

    def close(self) -> None:
        self._call("nvmlShutdown")

    def _call(self, name: str, *arguments: Any) -> int:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return FUNCTION_NOT_FOUND
        code = int(function(*arguments))
        if code in GONE:
            self._gone = code
        return code

    def _enumerate(self) -> None:
        count = ctypes.c_uint()
        code = self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        if code:
            raise SourceError(f"NVML cannot count the GPUs: {reason(code)}")
        self._handles, self.lost = {}, {}
        for index in range(count.value):
            handle = ctypes.c_void_p()
            code = self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            if code == SUCCESS:
                self._handles[index] = handle
            else:
                self.lost[index] = code
                self.absent[f"gpu:{index}"] = reason(code)

    def _read(self, reading: str, handle: ctypes.c_void_p, calls: Mapping[str, NvmlCall] = CALLS) -> Any:
        """Return a GPU's reading by its call in `calls`, in base units; None if NVML refuses (reason in `absent`)."""
        call = calls[reading]
        value = call.kind()
        arguments = (handle, *map(ctypes.c_uint, call.arguments), ctypes.byref(value))
        code = self._call(call.function, *arguments)
        if code == FUNCTION_NOT_FOUND and call.function in EARLIER:
            code = self._call(EARLIER[call.function], *arguments)
        number = self._checked(reading, code, getattr(value, call.part))
        if number == 0 and reading in ("pcie_width", "pcie_generation"):
            self.absent.setdefault(reading, VIRTUAL)
            return None
        if number is None:
            return None
        return number * call.times if call.per == 1 else number / call.per

    def _checked(self, key: str, code: int, value: Any) -> Any:
        if code == SUCCESS:
            return value
        if code not in CANNOT or key not in self.absent:  # one GPU's error outweighs other reasons
            self.absent[key] = reason(code)
        return None

    def _sample(self, index: int, handle: ctypes.c_void_p) -> Sample:
        readings = {reading: self._read(reading, handle) for reading in SAMPLED}
        readings["memory_temperature_celsius"] = self._field(handle, FI_MEMORY_TEMP, "memory_temperature_celsius")
        reasons = readings.pop("throttle")
        return {**known(readings), **({} if reasons is None else throttle(reasons)), **self._slowly(index, handle)}

    def _slowly(self, index: int, handle: ctypes.c_void_p) -> dict[str, Any]:
        """Return a GPU's readings that hardly change, read every SLOW_SECONDS; in between, only the power limit."""
        present = time.monotonic()
        at, cached = self._slow.get(index, (0.0, {}))
        if cached and present - at < SLOW_SECONDS:
            return {"power_limit_watts": cached["power_limit_watts"]} if "power_limit_watts" in cached else {}
        reading = known({name: self._read(name, handle) for name in SELDOM_SAMPLED})
        self._slow[index] = (present, reading)
        return reading

    def _field(self, handle: ctypes.c_void_p, field: int, reading: str, scope: int = 0) -> Any:
        """Return the value of an NVML field; None if the GPU refuses it."""
        return next(iter(self._fields(handle, [field], reading, scope)), None)

    def _fields(self, handle: ctypes.c_void_p, fields: Sequence[int], reading: str, scope: int = 0) -> list[Any]:
        """Return the values of NVML fields; fields that the GPU refuses are left out."""
        array = (_FieldValue * len(fields))()
        for item, field in zip(array, fields):
            item.field_id, item.scope_id = field, scope
        code = self._call("nvmlDeviceGetFieldValues", handle, ctypes.c_int(len(fields)), ctypes.byref(array))
        values = []
        for item in () if code else array:
            if item.result == SUCCESS and item.value_type < len(VALUE_TYPES):
                values.append(getattr(item.value, VALUE_TYPES[item.value_type]))
            else:
                self._checked(reading, item.result or NOT_SUPPORTED, None)
        self._checked(reading, code, None)
        return values

    def _counters(self, index: int, handle: ctypes.c_void_p) -> Counters:
        self._gone = SUCCESS
        uuid = self._read_text("nvmlDeviceGetUUID", handle)
        self._read("temperature_celsius", handle)
        if self._gone:  # the driver may remember the UUID of a GPU that fell off the bus, not its temperature
            self.absent[f"gpu:{index}"] = reason(self._gone)
            return {"lost": True}
        links = self._links_up(handle)
        reading = {
            "uuid": uuid,
            "pci_address": self._pci_address(handle),
            "fabric": fabric_text(read_fabric(self._call, handle, self.error_text)),
            **{name: self._read(name, handle) for name in COUNTED},
            "links_up": links,
            "link_errors": None if links is None else self._link_errors(handle, links),
            "link_corrected": None if links is None else self._link_corrected(handle, links),
            **self._remaps(handle),
        }
        return known(reading)

    def _read_text(self, function: str, handle: ctypes.c_void_p) -> Optional[str]:
        buffer = ctypes.create_string_buffer(96)
        code = self._call(function, handle, buffer, ctypes.c_uint(len(buffer)))
        return None if code else identifier(buffer.value.decode("utf-8", "replace"))

    def _pci_address(self, handle: ctypes.c_void_p) -> Optional[str]:
        pci = _PciInfo()
        code = self._call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        return None if code else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"

    def error_text(self, code: int) -> str:
        """Return NVML's own text for a return code."""
        try:
            function = self._library.nvmlErrorString
        except AttributeError:
            return reason(code)
        function.restype = ctypes.c_char_p
        return str((function(ctypes.c_uint(code)) or b"").decode("utf-8", "replace")) or reason(code)

    def _remaps(self, handle: ctypes.c_void_p) -> dict[str, int]:
        values = [ctypes.c_uint() for _ in range(4)]
        code = self._call("nvmlDeviceGetRemappedRows", handle, *(ctypes.byref(value) for value in values))
        if code:
            self._checked("row_remaps", code, None)
            return {}
        corrected, uncorrected, pending, failed = (value.value for value in values)
        return {"row_remaps": corrected + uncorrected, "row_remap_pending": pending, "row_remap_failed": failed}

    def _links_up(self, handle: ctypes.c_void_p) -> Optional[list[int]]:
        """Return the numbers of the NVLinks that are up; None for a GPU without NVLink."""
        count = self._field(handle, FI_NVLINK_LINK_COUNT, "link_count")
        up = []
        for link in range(MAX_LINKS if count is None else min(int(count), MAX_LINKS)):
            active = ctypes.c_uint()
            code = self._call("nvmlDeviceGetNvLinkState", handle, ctypes.c_uint(link), ctypes.byref(active))
            if code:
                if link == 0:
                    self._checked("link_errors", code, None)
                    return None
                if code == INVALID_ARGUMENT:
                    break
            elif active.value:
                up.append(link)
        return up

    def _link_errors(self, handle: ctypes.c_void_p, links: list[int]) -> Optional[dict[str, int]]:
        """Return the sum of error counters by NVLink (`{"0": 3}`); None for a GPU without such counters."""
        errors = {}
        for link in links:
            counts = []
            for counter in LINK_COUNTERS:
                value = self._link_counter(handle, link, counter)
                if value is not None:
                    counts.append(value)
                elif not counts:  # a link without the first counter has no counters
                    break
            if not counts:
                counts = self._fields(handle, LINK_FIELDS, "link_errors", link)
            if counts:
                errors[str(link)] = int(sum(counts))
        return errors or None

    def _link_counter(self, handle: ctypes.c_void_p, link: int, counter: int) -> Optional[int]:
        value = ctypes.c_ulonglong()
        arguments = (ctypes.c_uint(link), ctypes.c_uint(counter), ctypes.byref(value))
        return value.value if self._call("nvmlDeviceGetNvLinkErrorCounter", handle, *arguments) == SUCCESS else None

    def _link_corrected(self, handle: ctypes.c_void_p, links: list[int]) -> Optional[int]:
        """Return how many errors a GPU's NVLinks corrected in all; None if the GPU does not report them."""
        counts = [self._link_counter(handle, link, counter) for link in links for counter in LINK_CORRECTED]
        known_counts = [count for count in counts if count is not None]
        return sum(known_counts) if known_counts else None


def open_nvidia() -> Source:
    """Return NVML, else nvidia-smi, as the source of readings. Raises ``SourceError`` when neither can be read."""
    try:
        return Nvml()
    except SourceError as error:
        problem = str(error)
    try:
        source = NvidiaSmi()
    except SourceError as error:
        raise SourceError(f"{problem}; {error}") from None
    source.absent["nvml"] = problem
    return source
