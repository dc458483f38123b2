"""Whether this machine can run a policy, and how: see `doctor`."""

from typing import Optional

from gluon_amp.inspection.doctor import advice, detection, environment
from gluon_amp.inspection.doctor.report import Report

DEVICES = ("gpu", "cpu")


def doctor(policy: Optional[str] = None, device: Optional[str] = None) -> Report:
    """Report what is installed, which devices there are, which policies run here, and how.

    Parameters
    ----------
    policy : str, optional
        A preset or a string as for `Policy.parse`. The report's `.ok` is whether it runs.
    device : {'gpu', 'cpu'}, optional
        The device to run it on. Defaults to the GPU if there is one and MXNet is built with CUDA,
        even if MXNet's kernels cannot run on that GPU.

    Returns
    -------
    Report
        `.text()` has 80 columns; `.to_json()` returns the same as data.

    Raises
    ------
    ValueError
        An unknown device or policy.

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
    return Report(machine, device, outcomes, environment.settings(machine), policy)
