import re

import pytest
from gpuval_runner.log import CappedLog


def lines(count, start=0):
    return b"".join(b"line %06d\n" % number for number in range(start, start + count))


def test_a_short_log_is_kept_whole(tmp_path):
    log = CappedLog(tmp_path / "a.log", 1024)
    log.write(b"one\n")
    log.write(b"two")
    log.line("note")
    assert (tmp_path / "a.log").read_bytes() == b"one\ntwo\n[gpuval] note\n"
    assert (tmp_path / "a.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("limit", [1024, 5000, 100_000])
@pytest.mark.parametrize("piece", [7, 4096, 1_000_000])
def test_head_and_tail_stay_and_the_cut_is_counted(tmp_path, limit, piece):
    path = tmp_path / "a.log"
    log = CappedLog(path, limit)
    data = lines(20_000)
    if piece == 7:
        data = data[:30_000] if limit < 100_000 else data
    for start in range(0, len(data), piece):
        log.write(data[start : start + piece])
    kept = path.read_bytes()
    assert len(kept) <= limit
    assert kept.startswith(data[: limit // 4])
    assert kept.endswith(data[-limit // 4 :])
    cuts = re.findall(rb"\[gpuval: (\d+) bytes of output cut here\]\n", kept)
    assert len(cuts) == 1
    marker = re.search(rb"\n\[gpuval: \d+ bytes of output cut here\]\n", kept)
    assert len(kept) - len(marker.group()) + int(cuts[0]) == len(data)
    assert kept[marker.end() :].startswith(b"line ")


def test_the_file_is_whole_at_any_time(tmp_path):
    path = tmp_path / "a.log"
    log = CappedLog(path, 2048)
    for number in range(500):
        log.write(b"line %06d\n" % number)
        seen = path.read_bytes()
        assert len(seen) <= 2048
        assert seen.endswith(b"line %06d\n" % number)


def test_a_log_is_continued_with_its_count(tmp_path):
    path = tmp_path / "a.log"
    data = lines(1000)
    for part in (data[:5000], data[5000:9000], data[9000:]):
        log = CappedLog(path, 2048)
        log.write(part)
        log.close()
    kept = path.read_bytes()
    marker = re.search(rb"\n\[gpuval: (\d+) bytes of output cut here\]\n", kept)
    assert len(kept) - len(marker.group()) + int(marker.group(1)) == len(data)


def test_a_place_that_takes_nothing_costs_output_not_the_run(tmp_path):
    log = CappedLog(tmp_path / "missing" / "a.log", 1024)
    log.write(b"12345")
    assert log.lost_bytes == 5
    assert log.last_error == "No such file or directory"
    (tmp_path / "missing").mkdir()
    log.write(b"again")
    assert (tmp_path / "missing" / "a.log").read_bytes() == b"again"
