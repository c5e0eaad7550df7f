"""What is open inside the detector: problems, kept steady until they become findings."""
