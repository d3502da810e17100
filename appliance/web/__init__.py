"""Holds what any web program needs: sign-in, guard, HTTPS, texts, tables, styles."""

import sys

# FastAPI asks of every class whether it is one of pydantic 1's, and loads all of that for it: 1.5 MB. None of ours is.
sys.modules.setdefault("pydantic.v1", None)  # type: ignore[arg-type]
