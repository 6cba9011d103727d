"""python -m hashlens."""

from hashlens.cli import main

main()
