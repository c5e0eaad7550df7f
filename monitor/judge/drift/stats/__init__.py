"""Statistics without a subject: sequential tests, change-point dating, regression, AR(1) noise."""
