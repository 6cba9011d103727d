"""A served index, made once for all tests here."""

import pytest
from made_index import make_index


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    return make_index(tmp_path_factory.mktemp("served"))
