"""The disk of the results, looked at when a run is opened."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import guard

from tests.kit.run_commands import lay_out, open_run


def test_a_results_disk_that_is_nearly_full_is_named_and_stops_no_run(tmp_path, monkeypatch):
    results = lay_out(tmp_path)
    assert "lacks" not in open_run(results).text
    monkeypatch.setattr(guard, "shortage", lambda place: 2_000_000_000 if place == results else 0)
    done = open_run(results, "new")
    assert not done.failed
    assert f"the disk of gpuval_results_dir lacks 2.00 GB: free space at {results}" in done.text
