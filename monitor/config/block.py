"""What all blocks of our files have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Block(BaseModel):
    """A block of a file: unknown keys are refused, so that a misspelt one is never silently
    ignored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
