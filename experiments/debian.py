"""Bare Debian systems in folders: debootstrap makes them once, and chroot runs programs in them.

Both need root, as binding folders of this machine does. They are kept beside other caches, as a
checkout with a system in it could no longer be searched or copied.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from gluon_amp.base.messages import UsageError

SYSTEMS = Path.home() / ".cache" / "gluon_amp-debian"
# What lets programs reach the network in the way of this machine, where it has one of its own. The
# certificates are seen elsewhere, as installing ca-certificates in a system writes its own ones.
NETWORK = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/xdg/pip")
CERTIFICATES, SEEN_AT = "/etc/ssl/certs", "/run/certificates"
ALWAYS = ("/proc", "/dev", "/sys")
# Debian's names of architectures that qemu emulates, and Linux's
MACHINES = {"arm64": "aarch64"}
FORMATS = Path("/proc/sys/fs/binfmt_misc")


def system(suite: str, architecture: str = "amd64", packages: Sequence[str] = ()) -> Path:
    """Return the folder of a minimal Debian system with packages; make it if there is none.

    Without debootstrap, root or the network it is a `UsageError`. Another architecture needs
    qemu-user-static.
    """
    folder = SYSTEMS / "-".join([suite, architecture, *sorted(packages)])
    if MACHINES.get(architecture, platform.machine()) != platform.machine():
        _emulate(MACHINES[architecture])
    if folder.is_dir():
        return folder
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise UsageError("Debian systems are made by root with debootstrap: install it.")
    SYSTEMS.mkdir(parents=True, exist_ok=True)
    made = folder.with_suffix(".part")
    shutil.rmtree(made, ignore_errors=True)
    include = [f"--include={','.join(packages)}"] if packages else []
    options = ["--variant=minbase", f"--arch={architecture}", *include]
    done = subprocess.run(["debootstrap", *options, suite, str(made)], capture_output=True)
    if done.returncode:
        last = done.stdout.decode(errors="replace").strip().splitlines()[-1:]
        raise UsageError(f"Debian {suite} for {architecture} cannot be made: {' '.join(last)}")
    made.rename(folder)
    return folder


def _emulate(machine: str) -> None:
    """Let Linux start programs of another machine in qemu, as most systems do when they start."""
    rule = Path(f"/usr/lib/binfmt.d/qemu-{machine}.conf")
    if (FORMATS / rule.stem).exists():
        return
    if not rule.exists() or os.geteuid() != 0:
        raise UsageError(f"{machine} is emulated by root with qemu-user-static: install it.")
    if not (FORMATS / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(FORMATS)], check=True)
    (FORMATS / "register").write_text(rule.read_text())


@contextlib.contextmanager
def copied(system: Path) -> Iterator[Path]:
    """Return a context with a copy of a system, for programs that change it."""
    root = Path(tempfile.mkdtemp(prefix="copy-", dir=SYSTEMS.resolve()), "root")
    try:
        subprocess.run(["cp", "-a", "--reflink=auto", str(system), str(root)], check=True)
        yield root
    finally:
        # What is still bound would be removed, too, and that is this machine's.
        if str(root) not in Path("/proc/self/mounts").read_text():
            shutil.rmtree(root.parent)


@contextlib.contextmanager
def bound(root: Path, *folders: str) -> Iterator[None]:
    """Return a context in which files of this machine are seen in a system, at the same paths.

    A system cannot write to those of the network, only to `folders`.
    """
    targets = []
    try:
        for source in map(Path, [*ALWAYS, *NETWORK, CERTIFICATES, *folders]):
            if not source.exists():
                continue
            seen_at = Path(SEEN_AT) if str(source) == CERTIFICATES else source
            target = root / seen_at.relative_to("/")
            if source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            elif not target.exists():  # another program may have bound it
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
            subprocess.run(["mount", "--bind", str(source.resolve()), str(target)], check=True)
            targets.append(target)
            if str(source) in (*NETWORK, CERTIFICATES):
                subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True)
        yield
    finally:
        for target in reversed(targets):
            subprocess.run(["umount", "--lazy", str(target)], check=True)


def run(root: Path, command: str, title: str, **variables: str) -> str:
    """Run a shell command in a system; print what it printed, and return it.

    See `bound` for folders. A command that fails is a `UsageError` with its title.
    """
    start = time.perf_counter()
    environment: Mapping[str, str] = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "PIP_ROOT_USER_ACTION": "ignore",
        **{
            name: os.environ[name].replace(CERTIFICATES, SEEN_AT)
            for name in ("PIP_CERT", "SSL_CERT_FILE")
            if name in os.environ
        },
        **variables,
    }
    done = subprocess.run(
        ["chroot", str(root), "sh", "-c", command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    seconds = time.perf_counter() - start
    print(f"== {title}: {seconds:.0f} s\n{done.stdout}", end="", flush=True)
    if done.returncode:
        raise UsageError(f"{title} failed with status {done.returncode}.")
    return done.stdout
