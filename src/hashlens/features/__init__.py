"""Features: images in, a row of numbers for each out, from which methods on fixed features learn."""
