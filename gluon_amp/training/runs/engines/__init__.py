"""What trains on a batch: by Gluon or by Module, with one interface."""
