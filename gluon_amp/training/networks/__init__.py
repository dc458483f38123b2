"""The network of a run: a zoo's model by name, its head, its first weights, cast by a policy."""
