"""Runs what MXNet's users run, in float32 and with every policy, and compares the losses.

A family is a project on top of MXNet, such as GluonCV, with the packages that it needs. A case is
one program, as a user writes it: stock MXNet in float32, without gluon_amp. The other dtypes run it
after a few edits (`families`). To add a case, write a program that

- calls `seed_all` of `shared`; where several cases share a program, CASE is the name of the case;
- learns from data that it makes itself, for STEPS steps;
- adds the loss of each step to `losses`, and calls `report`, perhaps with further results.
"""
