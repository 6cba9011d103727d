"""Deep hashers, the only ones that need torch: networks, losses and the one training loop."""
