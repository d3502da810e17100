"""Reads what `/metrics` answers."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Samples = set[tuple[str, frozenset[tuple[str, str]], float]]


def samples(text: str) -> Samples:
    """Name, labels and value of each line."""
    lines = "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())
    families = text_string_to_metric_families(lines)
    return {(each.name, frozenset(each.labels.items()), each.value) for family in families for each in family.samples}
