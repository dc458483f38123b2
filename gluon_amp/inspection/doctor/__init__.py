"""Whether this machine can run a policy, and how: see `doctor`."""

from typing import Optional

from gluon_amp.inspection.doctor import advice, detection, environment
from gluon_amp.inspection.doctor.report import Report

DEVICES = ("gpu", "cpu")


def doctor(policy: Optional[str] = None, device: Optional[str] = None) -> Report:
    """Tell what is installed, which devices there are, and which policies run here, and how.

    Parameters
    ----------
    policy : str, optional
        A preset or a string as for `Policy.parse`. The report's `.ok` tells whether it runs.
    device : {'gpu', 'cpu'}, optional
        Where it is to run. Defaults to the GPU where there is one and MXNet is built for it, also
        if MXNet cannot run on it.

    Returns
    -------
    Report
        Its text has 80 columns; `.to_json()` has the same as data.

    Raises
    ------
    ValueError
        Another device, or an unknown policy.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> amp.doctor('float16', device='cpu').ok
    True
    """
    if device not in (None, *DEVICES):
        raise ValueError(f"doctor() got the device {device!r}, expected 'gpu' or 'cpu'.")
    machine = detection.read_machine()
    device = device or advice.default_device(machine)
    outcomes = advice.outcomes(machine, device, policy)
    return Report(machine, device, outcomes, environment.settings(), policy)
