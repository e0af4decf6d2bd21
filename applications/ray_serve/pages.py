"""The page for Prometheus of several replicas: each one's counters, with its name as the label `replica`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample


def together(front: str, replicas: Iterable[tuple[str, str]]) -> bytes:
    """One page.

    Args:
        front: the page of the front, which counts HTTP requests alone.
        replicas: the name and the page of each replica.
    """
    found = _Families()
    for family in text_string_to_metric_families(front):
        found.add(family, [sample for sample in family.samples if "path" in sample.labels])
    for name, page in replicas:
        for family in text_string_to_metric_families(page):
            found.add(family, [each._replace(labels=each.labels | {"replica": name}) for each in family.samples])
    return generate_latest(found)


class _Families(Collector):
    """Families of samples by name."""

    def __init__(self) -> None:
        self._found: dict[str, Metric] = {}

    def add(self, family: Metric, samples: Iterable[Sample]) -> None:
        own = self._found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        own.samples += samples

    def collect(self) -> Iterator[Metric]:
        return (family for family in self._found.values() if family.samples)
