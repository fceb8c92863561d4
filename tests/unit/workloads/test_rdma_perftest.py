"""perftest's output by version, its complaints, and its options.

Tables keep the columns, figures and blanks of public reports; the issue or page is named beside each.
"""

import shutil
import subprocess

import pytest
from gpuval_workloads.rdma import perftest
from gpuval_workloads.rdma.perftest import PerftestEnd, PerftestMeasurement

BANNER = """ WARNING: BW peak won't be measured in this run.
---------------------------------------------------------------------------------------
                    RDMA_Write Bidirectional BW Measurement
 Dual-port       : OFF\t\tDevice         : mlx5_3
 Number of qps   : 2\t\tTransport type : IB
 Mtu             : 4096[B]
 Link type       : IB
 Max inline data : 0[B]
 rdma_cm QPs\t : OFF
---------------------------------------------------------------------------------------
 local address: LID 0x1907 QPN 0x0867 PSN 0x6d058e RKey 0x1fffb9 VAddr 0x007f58a406e000
---------------------------------------------------------------------------------------
"""
GBITS = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
LATENCY = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec] "
)
FREQUENCY = "Conflicting CPU frequency values detected: 2200.000000 != 1040.353000. CPU Frequency is not max."


def test_bandwidths_of_several_versions():
    tables = {
        # linux-rdma/perftest pull request 342, and issue 82 for the two columns of 5.60
        f"{GBITS}\n 65536      403504           0.00               42.31                0.080701": 42.31e9 / 8,
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]\n 65536      5000  3018.97 3018.89": 3018.89
        * 2**20,
        # issue 65, and pull request 35 for the unit's new name: both are 2^20 bytes
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
        " 1024       1000             0.00               5544.28\t\t   5.677340": 5544.28 * 2**20,
        " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n"
        " 65536      1000             11730.1            11728.47\t\t   0.187": 11728.47 * 2**20,
        # with --cpu_util; a warning between header and row
        f"{GBITS}    CPU_Util[%]\n{FREQUENCY}\n 8388608    5000   197.10   196.92   0.002934   3.12": 196.92e9 / 8,
        # rows of several sizes: the last and largest counts
        f"{GBITS}\n 2          5000           0.042350            0.042185            2.636533\n"
        " 8          5000             0.17               0.17   \t\t   2.641399": 0.17e9 / 8,
    }
    for table, expected in tables.items():
        assert perftest.bandwidth(BANNER + table + "\n" + "-" * 87) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        GBITS,
        f"{GBITS}\n 65536      1000             0.00               nan \t\t   0.0",
        f"{GBITS}\n 65536      1000             0.00               -12.31 \t\t   0.1",  # issue 82: negative
        f"{GBITS}\n 65536      1000             0.00               0.00 \t\t   0.0",
        f"{GBITS}\n 65536      1000             392.8",
        " 65536      1000             0.00               392.8 \t\t   0.1",
        GBITS.replace("Gb/sec", "parsec") + "\n 65536 1000 0.0 392.8 0.1",
    ],
)
def test_what_is_no_bandwidth_is_none(text):
    assert perftest.bandwidth(text) is None


def test_latencies():
    row = (
        " 2       1000          6.88           16.81        7.04              7.06         0.31      7.38        16.81"
    )
    found = perftest.latency(f"{BANNER}{LATENCY}\n{FREQUENCY}\n{FREQUENCY}\n{row}\n")
    assert found == pytest.approx((7.04e-6, 7.38e-6, 16.81e-6))
    assert perftest.latency(f"{LATENCY}\n{row.replace('7.38', '5.00')}") is None  # no percentiles
    assert perftest.latency(f"{LATENCY}\n{row.replace('7.04', '-7.04')}") is None
    # issue 80: with a duration there is an average alone
    assert perftest.latency(" #bytes        #iterations       t_avg[usec]    tps average\n 8  100  1.9  526315") is None
    assert perftest.latency(LATENCY.replace("usec", "cycles") + "\n" + row) is None


@pytest.mark.parametrize(
    ("text", "is_setup_problem"),
    [
        (" Did not detect devices \n Unable to find the Infiniband/RoCE device", True),
        (" Couldn't get context for the device", True),
        ("Couldn't allocate MR\nfailed to create mr\n Couldn't create IB resources", True),  # memlock
        ("Unsupported memory type\n Parser function exited with Error", True),
        ("ib_write_bw: error while loading shared libraries: libmlx5.so.1: cannot open shared object file", True),
        ("ib_write_bw: unrecognized option '--use_cuda=0'\n Invalid Command or flag.", True),
        ("Failed to bind socket\nCouldn't listen to port 18515\n Unable to open file descriptor for socket", True),
        ("initializing CUDA\n Completion with error at client\n Failed status 12: wr_id 0", False),
        (" Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0", False),
        ("Failed to modify QP 616 to RTR\n Unable to Connect the HCA's through the link", False),
    ],
)  # fmt: skip
def test_complaints_name_the_setup_or_a_port(text, is_setup_problem):
    assert perftest.is_setup_problem([BANNER, text]) is is_setup_problem
    assert perftest.complaint([BANNER, text])


def test_output_without_a_complaint_has_none():
    assert perftest.complaint([BANNER, GBITS]) == "" and not perftest.is_setup_problem([BANNER])


ENDS = (PerftestEnd("mlx5_0", 1), PerftestEnd("mlx5_1", 1, 5))
TESTS = [
    PerftestMeasurement("ib_write_bw", ENDS[0], ENDS[0], 20),
    PerftestMeasurement("ib_write_bw", ENDS[0], ENDS[1], 0, both_ways=True),
    PerftestMeasurement("ib_send_bw", ENDS[1], ENDS[1]),
    PerftestMeasurement("ib_read_lat", ENDS[0], ENDS[0]),
    PerftestMeasurement("ib_write_lat", ENDS[1], ENDS[1]),
]


def test_both_ends_have_the_same_options_but_for_their_ports():
    test = TESTS[1]
    server, client = test.arguments(test.server, 7), test.arguments(test.client, 7)
    assert server[:2] == ["-d", "mlx5_0"] and client[:2] == ["-d", "mlx5_1"] and client[7:9] == ["-x", "5"]
    assert set(client) - set(server) == {"mlx5_1", "-x", "5"}
    assert test.name == "mlx5_1:1>mlx5_0:1" and "-b" in client


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.title)
def test_the_real_tools_know_these_options(test):
    tool = shutil.which(test.tool)
    if not tool:
        pytest.skip("needs perftest (apt-get install perftest)")
    arguments = test.arguments(PerftestEnd("absent_0", 1), 18515)
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert perftest.is_setup_problem([done.stdout, done.stderr])
    assert "Unable to find the Infiniband/RoCE device" in done.stdout + done.stderr
    with_nonsense = subprocess.run([tool, "--nonsense"], capture_output=True, text=True, timeout=30, check=False)
    assert "unrecognized option" in with_nonsense.stderr
