"""`gluon-amp export`: write a checkpoint's network as an ONNX file that was run and compared."""

from pathlib import Path
from typing import Optional, Sequence

from gluon_amp.base.messages import UsageError
from gluon_amp.handover.to_onnx.export import export_onnx
from gluon_amp.training import command_line as read
from gluon_amp.training.command_line import Parser, status_of
from gluon_amp.training.runs.exporting import of_checkpoint, of_symbol

BATCH = 4


def main(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp export") -> int:
    """Export a network and print how it differs from the file; return the exit status."""
    parser = Parser(
        prog=prog,
        description="Write a network as an ONNX file. onnxruntime runs the file, and its outputs "
        "are compared with the network's. Where more than rounding differs, nothing is written.",
    )
    add = parser.add
    saved = "checkpoint of a training, a --save-dir (its best one), or a -symbol.json of MXNet"
    add("network", saved, type=read.path)
    add(
        "--output",
        "output file (default: the input's name with .onnx)",
        type=read.output_file,
        metavar="FILE",
    )
    half = "'float16' writes weights in float16, with norms, softmax and sums in float32"
    add("--policy", half, metavar="P")
    add("--average", "the averaged weights of --ema-decay", read.SWITCH)
    add("--batch-size", "batch size of the comparison", read.COUNT, default=BATCH)
    add("--fixed-batch", "a file for that batch size alone", read.SWITCH)
    add("--input-size", "pixels of an image, if a checkpoint does not have them", read.COUNT)
    add("--params", "parameter file that goes with a -symbol.json", read.OUTPUT)
    sizes = {
        "type": read.several(read.positive_int, "sizes such as 1,3,224,224"),
        "metavar": "SIZES",
    }
    of_input = "shape of an input of a -symbol.json; once for each input"
    add("--shape", of_input, sizes, action="append", default=[])
    options = parser.parse_args(arguments)

    def work() -> None:
        network: Path = options.network
        if not network.exists():
            raise UsageError(f"{network} does not exist: give a checkpoint or its folder.")
        if network.suffix == ".json":
            exported = of_symbol(network, options.params, options.shape)
        else:
            exported = of_checkpoint(
                network, options.input_size, options.average, options.batch_size
            )
        target = options.output or Path(f"{network.resolve().stem}.onnx")
        axes = None if options.fixed_batch else exported.batch_axes
        print(
            export_onnx(
                exported.net,
                target,
                *exported.inputs,
                policy=options.policy,
                batch_axis=axes,
                metadata=exported.metadata,
            )
        )

    return status_of(parser.prog, work)
