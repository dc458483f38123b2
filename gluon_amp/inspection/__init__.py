"""Functions that look at a net, a training or a machine, and change none of them."""
