"""The daemon's judges over stored history or a CSV file: `backtest` and `calibrate`."""
