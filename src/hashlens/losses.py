"""The losses of the deep methods: `from hashlens.losses import DTSHLoss`; see hashlens.hashers.losses."""

from hashlens.hashers.losses import *  # noqa: F403
from hashlens.hashers.losses import __getattr__ as __getattr__
