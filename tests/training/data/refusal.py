"""The sentence with which data are refused."""

import pytest

from gluon_amp.training.data import DataError


def refusal(function, *arguments, **options):
    """Return the message of the `DataError` that a call raises."""
    with pytest.raises(DataError) as caught:
        function(*arguments, **options)
    return str(caught.value)
