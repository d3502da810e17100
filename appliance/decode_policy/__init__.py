"""Decodes only what can matter: see docs/decode.md."""

from __future__ import annotations
