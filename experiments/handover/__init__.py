"""Hand networks over to PyTorch: an environment with both frameworks, and the tests in it.

`requirements.txt` has the versions. gluon_amp is installed from this checkout.
"""
