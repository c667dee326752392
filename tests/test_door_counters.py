"""What counters gain between two batches, over several sources, without what an evaluation adds."""

from mintrl_trl.batch_report import DoorCounters


class Source:
    def __init__(self, **counts):
        self.counts = counts

    def counters(self):
        return {name: float(value) for name, value in self.counts.items()}


def test_sources_of_one_name_are_added_up_and_gains_start_anew():
    first, second = Source(passes=3, tokens=5), Source(passes=10)
    doors = DoorCounters(first, None, second)
    assert doors.gained().means() == {"passes": 13.0, "tokens": 5.0}
    first.counts["passes"] += 1
    second.counts["passes"] += 4
    assert doors.gained().means() == {"passes": 5.0, "tokens": 0.0}


def test_what_happens_apart_is_no_gain():
    source = Source(passes=3)
    doors = DoorCounters(source)
    source.counts["passes"] += 2  # before the evaluation, and not asked for yet
    with doors.apart():
        source.counts["passes"] += 100
    source.counts["passes"] += 1
    assert doors.gained().means() == {"passes": 6.0}
    with doors.apart():
        source.counts["passes"] += 100
    assert doors.gained().means() == {"passes": 0.0}
