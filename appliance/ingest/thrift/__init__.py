"""Decodes only what can matter: see docs/decode.md."""
