"""A pair of namespaces in virtual time, and workers on it."""

from __future__ import annotations

from tests.client.conftest import client, pair

__all__ = ["client", "pair"]
