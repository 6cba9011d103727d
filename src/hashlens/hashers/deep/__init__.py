"""Deep hashers: a network, a loss and the one training loop. The only hashers that need torch."""
