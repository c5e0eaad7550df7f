"""Which renderer turns the findings of a kind into text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from monitor.model import Finding, Kind
from monitor.show.findings.texts import GpuNames, Texts

Renderer = Callable[[Finding, GpuNames], Texts]

RENDERERS: Mapping[Kind, Renderer] = {}
