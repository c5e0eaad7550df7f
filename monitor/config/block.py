"""The base class of all blocks of the configuration and probe files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ConfigBlock(BaseModel):
    """A block of a file. Unknown keys are errors, so that a misspelt key is never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
