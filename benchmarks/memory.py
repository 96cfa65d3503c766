"""Peak memory of this process and its children, sampled while work runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

_SAMPLE_S = 0.05


@dataclass
class Peak:
    """Maximum RSS in MiB, by kind of process."""

    mib: dict[str, float] = field(default_factory=dict)

    def see(self) -> None:
        me = psutil.Process()
        seen = {"driver": _rss(me), "jvm": 0.0, "workers": 0.0}
        for child in me.children(recursive=True):
            try:
                kind = "jvm" if child.name() == "java" else "workers"
            except psutil.NoSuchProcess:
                continue
            seen[kind] += _rss(child)
        self.mib = {kind: max(value, self.mib.get(kind, 0.0)) for kind, value in seen.items()}


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """Sample memory until the block ends."""
    peak, done = Peak(), threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            peak.see()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _rss(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 1024**2
    except psutil.NoSuchProcess:
        return 0.0
