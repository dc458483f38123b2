"""What `import mxnet` needs of numpy and Python."""

import subprocess
import sys

import numpy as np
import pytest

from gluon_amp.base.startup import compat


def test_the_aliases_are_the_types_themselves():
    assert (np.bool, np.int, np.float, np.object) == (bool, int, float, object)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has distutils")
def test_distutils_comes_without_the_hook_of_a_site_directory():
    code = "import sys; sys.path = %r; %s; import distutils"
    # Importing the package would import MXNet, so the file is run alone.
    restore = f"exec(open({compat.__file__!r}).read()); restore_distutils()"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code % (sys.path, restore)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
