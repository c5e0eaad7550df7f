"""The quality gate: conditions and pins, near ties, the model shift, and candidate servers."""
