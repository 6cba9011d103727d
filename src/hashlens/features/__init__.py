"""Features: images in, a row of numbers for each out. What methods on fixed features learn from."""
