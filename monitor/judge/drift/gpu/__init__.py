"""One GPU: its readings, its baseline, and the early warnings it gives."""
