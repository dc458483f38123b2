"""A figure of the error of each epoch."""

from pathlib import Path

from gluon_amp.base.messages import from_extra
from gluon_amp.inspection.figures import OTHER, STYLE, SUPPORT
from gluon_amp.training.runs.history import History
from gluon_amp.training.runs.outputs import saving


def draw_errors(history: History, path: Path, title: str) -> None:
    """Draw the errors of each epoch: top-1 of training, top-1 and top-5 of validation.

    Parameters
    ----------
    history : History
    path : Path
        The PNG file to write.
    title : str

    Raises
    ------
    UsageError
        matplotlib is not installed.
    SavingError
        Writing fails; the disk is full, for example.
    """
    with from_extra("results", "--plot needs matplotlib"):
        import matplotlib.style
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    validated = {e: v for e, v in enumerate(history.validated) if v is not None}
    first = len(history.validated) - len(history.trained)
    epochs = range(first, first + len(history.trained))
    training_errors = [100 * (1 - result.accuracy) for result in history.trained]
    with matplotlib.style.context(STYLE):
        figure, panel = plt.subplots(figsize=(7, 4.2), layout="constrained")
        panel.plot(epochs, training_errors, color=SUPPORT, label="training, top-1")
        for name, colour in (("top1", "black"), ("top5", OTHER)):
            errors = [100 * (1 - getattr(result, name)) for result in validated.values()]
            label = f"validation, {name[:3]}-{name[3:]}"
            panel.plot(list(validated), errors, color=colour, marker=".", label=label)
        panel.set(xlabel="epoch", ylabel="error in %", title=title)
        panel.set_ylim(bottom=0)
        panel.legend()
    try:
        with saving(f"--plot {path}"):
            figure.savefig(path)
    finally:
        plt.close(figure)
