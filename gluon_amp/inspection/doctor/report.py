"""The doctor's report, as text in 80 columns and as JSON."""

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from gluon_amp.inspection.doctor import advice
from gluon_amp.inspection.doctor.detection import Machine
from gluon_amp.inspection.doctor.environment import Setting
from gluon_amp.inspection.values import Preformatted, paragraph


@dataclass(frozen=True)
class Report(Preformatted):
    """What `doctor` returns: the machine, and what it can run."""

    machine: Machine
    device: str  # 'gpu' or 'cpu', of the outcomes
    outcomes: List[advice.Outcome]  # for each policy, whether it runs there, and how or why not
    settings: List[Setting]  # the environment variables that matter
    asked: Optional[str] = None  # the policy that was asked for

    @property
    def ok(self) -> bool:
        """Whether the policy that was asked for runs; True without one."""
        return all(outcome.runs for outcome in self.outcomes if outcome.policy == self.asked)

    @property
    def recommended(self) -> advice.Recommendation:
        """What to train with on the device, or on the CPU if MXNet cannot use the GPU."""
        return advice.recommended(self.machine, self.device)

    def to_dict(self) -> dict:
        """Return the report as dicts, lists, strings, numbers, booleans and None."""
        machine = self.machine

        def facts(*names: str) -> Dict[str, Any]:
            return {name: getattr(machine, name) for name in names}

        return {
            "ok": self.ok,
            "asked": self.asked,
            "device": self.device,
            **facts("python", "numpy", "mxnet", "system", "wheels", "cuda_build"),
            "driver": machine.driver.found,
            "gpus": [
                {
                    "name": gpu.name,
                    "capability": gpu.version,
                    "runs": advice.runs_mxnet(gpu),
                    "tensor_cores": advice.has_tensor_cores(gpu),
                    "advice": advice.about_gpu(gpu),
                }
                for gpu in machine.driver.gpus
            ],
            "cpu": {
                "name": machine.cpu_name,
                "cores": machine.cores,
                "features": advice.cpu_features(machine.cpu_flags),
                "bfloat16": machine.cpu_bfloat16,
                **facts("compiler", "native", "prebuilt", "load"),
                "warning": self._busy or None,
            },
            "policies": [outcome._asdict() for outcome in self.outcomes],
            "recommended": self.recommended._asdict(),
            "environment": [setting._asdict() for setting in self.settings],
        }

    def to_json(self) -> str:
        """Return the report as a JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __repr__(self) -> str:  # also of str()
        return self.text()

    def text(self, verbose: bool = False) -> str:
        """Return the report in 80 columns; `verbose` adds the variables that are not set."""
        facts = [*self._versions_and_cpu(), *self._gpus()]
        lines = [paragraph(text, f"{name:<7} ") for name, text in facts]
        lines += ["", f"Policies on the {self.device.upper()}"]
        for policy, runs, how in self.outcomes:
            verdict = "runs" if runs else "CANNOT RUN"
            lines.append(paragraph(how, f"  {policy:<14} {verdict:<10} "))
        lines += self._environment(verbose)
        for policy, runs, how in self.outcomes:
            if policy == self.asked:
                can = "can" if runs else "cannot"
                lines += ["", paragraph(f"Policy {policy} {can} run here: {how}")]
        default = advice.default_device(self.machine)
        return "\n".join([*lines, "", self.recommended.sentence(default)])

    @property
    def _busy(self) -> str:
        return advice.about_load(self.machine.load, self.machine.all_cores)

    def _versions_and_cpu(self) -> List[Tuple[str, str]]:
        m = self.machine
        wheel = " and ".join(m.wheels) or "built from source"
        cuda = "with CUDA" if m.cuda_build else "without CUDA"
        cores = f"{m.cores} core{'s' if m.cores != 1 else ''}" if m.cores else "cores unknown"
        features = advice.cpu_features(m.cpu_flags) or ["no instruction set that matters here"]
        origin = "prebuilt, checked here" if m.prebuilt else "compiled here"
        kernels = origin if m.native else "not in use"
        return [
            ("Python", f"{m.python}, numpy {m.numpy}, {m.system}"),
            ("MXNet", f"{m.mxnet} ({wheel}), {cuda}"),
            ("CPU", f"{m.cpu_name}, {cores}"),
            ("", ", ".join(features)),
            ("", f"C++ compiler: {m.compiler or 'none found'}; C++ kernels: {kernels}"),
            *([("", f"WARNING: {self._busy}")] if self._busy else []),
        ]

    def _gpus(self) -> List[Tuple[str, str]]:
        rows = [
            (f"GPU {number}", f"{gpu.name} ({gpu.version}): {advice.about_gpu(gpu)}")
            for number, gpu in enumerate(self.machine.driver.gpus)
        ]
        why_not = advice.about_no_gpu(self.machine)
        return [*rows, *([("GPU", why_not)] if why_not else [])]

    def _environment(self, verbose: bool) -> List[str]:
        shown = [setting for setting in self.settings if verbose or setting.value is not None]
        title = "Environment variables that are set" + ("" if shown else ": none that matters")
        lines = ["", "Environment variables (-: not set)" if verbose else title]
        for setting in shown:
            value = "-" if setting.value is None else setting.value
            lines += [f"  {setting.name}: {value}", paragraph(setting.does, " " * 6)]
            if setting.warning:
                lines.append(paragraph(setting.warning, "      WARNING: "))
        return lines
