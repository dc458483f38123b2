"""One training step: loss scale, overflow check, update or skip.

Nine ideas, from the ground up:

1. A *loss scale* multiplies the loss, and goes up and down (`loss_scale`).
2. A *pass* is what is known of the backward passes since the last step. The loss scale owns it
   (`state`).
3. The *state of a step* has a phase, which says what may follow (`state`).
4. *Gradients* are in the parameters' arrays, or float32 sums in their place (`gradients`).
5. The *first scale* is searched for by replays of a pass that overflows (`first_scale`).
6. A *trainer* makes the steps (`scaled_trainer`, `update`, `guards`). It is built (`trainer`), or
   made from one of another class, with the functions of `contrib_amp`.
7. A *report* says what a step did, or why it was skipped (`report`).
8. *States* are what a resumed run needs, of this trainer or a stock one (`states`, `state_files`,
   `schedules`, `stock_states`).
9. *Averages* of the weights advance with the applied steps (`ema`).
"""

from gluon_amp.trainer.loss_scale import BY_DTYPE
from gluon_amp.trainer.report import StepReport
from gluon_amp.trainer.scaled_trainer import MAX_CONSECUTIVE_SKIPS, ScaledTrainer
from gluon_amp.trainer.trainer import Trainer

__all__ = ["BY_DTYPE", "MAX_CONSECUTIVE_SKIPS", "ScaledTrainer", "StepReport", "Trainer"]
