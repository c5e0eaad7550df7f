"""The simulated language model and its tokenizer."""
