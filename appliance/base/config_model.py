"""Defines the base class of all parts of a configuration, without a YAML library."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ConfigModel(BaseModel):
    """Frozen, and unknown keys are refused.

    pydantic would keep the short texts of all JSON that it reads in a table, up to 16,384 of them: 0.3 MB at once, more
    with time, and nothing is read faster for it here (1.5 us a message of the ingest channel either way).
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, cache_strings="none"
    )
