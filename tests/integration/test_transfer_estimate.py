"""What is told before the start of models that cannot be transferred in time."""


def test_a_deadline_too_short_for_the_model_is_warned_of_and_nothing_fails(new_fleet):
    with new_fleet("transfer") as fleet:
        assert "cannot be transferred" not in fleet.play("gpuval.fleet.prepare").told
        slow = ["-e", "gpuval_store_bits_per_second=1000000", "-e", "gpuval_deadline_seconds=1"]
        done = fleet.play("gpuval.fleet.prepare", *slow)
        assert done.code == 0, done
        assert "models and images cannot be transferred within the deadline of 1 s" in done.told
        assert "gpuval_deadline_seconds" in done.told
        measured = fleet.play("gpuval.fleet.prepare", "-v", "-e", "gpuval_deadline_seconds=1")
        assert measured.code == 0, measured
        assert "measured from the controller" in measured.told
        checked = fleet.play("gpuval.fleet.prepare", "--check")
        assert checked.code == 0, checked
