"""Meters: counts from many threads add up, and distributions have quantiles and differences."""

import threading

import pytest

from catchment.foundation.meters import OTHER, Counter, Distribution, Histogram, Labelled


def test_counts_of_many_threads_add_up_even_after_the_threads_ended() -> None:
    counter, histogram = Counter(), Histogram((1.0, 2.0))

    def count() -> None:
        for value in (1.0, 1.5, 3.0):
            counter.add(2)
            histogram.observe(value)

    for _ in range(3):
        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    count()
    assert counter.read() == 25 * 6
    assert histogram.read() == Distribution((1.0, 2.0), (25, 25, 25), 25 * 5.5)


def test_a_quantile_is_the_value_below_which_that_share_of_the_values_is() -> None:
    found = Distribution((1.0, 2.0, 4.0), (50, 40, 9, 1), 0.0)
    assert found.quantile(0.5) == 1.0
    assert found.quantile(0.7) == pytest.approx(1.5)
    assert found.quantile(0.99) == pytest.approx(4.0)
    # Beyond the last bound nothing is known but that.
    assert found.quantile(1.0) == 4.0
    assert Distribution((1.0,), (0, 0), 0.0).quantile(0.5) is None
    assert Distribution((1.0,), (0, 0), 0.0).mean is None


def test_the_difference_of_two_readings_is_the_count_in_between() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5)
    before = histogram.read()
    histogram.observe(3.0)
    assert histogram.read().minus(before) == Distribution((1.0,), (0, 1), 3.0)


def test_labels_over_the_limit_are_counted_together() -> None:
    labelled = Labelled("known")
    for number in range(2_000):
        labelled.add(f"label {number}")
    labelled.add("known", 5)
    found = labelled.read()
    assert found["known"] == 5
    assert found[OTHER] == 2_000 - 999
    assert len(found) == 1_001
