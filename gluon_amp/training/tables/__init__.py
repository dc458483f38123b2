"""Tables of `gluon-amp results`: several configurations, trained over seeds and compared."""
