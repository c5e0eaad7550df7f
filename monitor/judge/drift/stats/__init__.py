"""Statistics without a subject: sequential tests, change-point dating, regression, AR(1) noise,
rank tests, robust means and hysteresis. Imports nothing of the other folders.
"""
