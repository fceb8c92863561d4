"""A device's events where there is no device."""


class Event:
    """An event of a device that is not there: recorded, then a second after the last."""

    recorded = 0

    def __init__(self, enable_timing):
        self.at = None

    def record(self):
        Event.recorded += 1
        self.at = Event.recorded

    def elapsed_time(self, end):
        return (end.at - self.at) * 1000
