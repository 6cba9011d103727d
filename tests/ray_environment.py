"""What Ray gets to know from the tests that start it, in a process of their own, as its warnings are not ours."""

import os


def ray_environment():
    """Its workers take turns with the other tests: by themselves they would be the last to get a core."""
    settings = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_prestart_worker_first_driver": "0",  # processes that nothing here uses
        "RAY_enable_worker_prestart": "0",
    }
    return os.environ | settings
