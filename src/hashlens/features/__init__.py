"""Features: images in, a row of numbers for each out; methods on fixed features learn from them."""
