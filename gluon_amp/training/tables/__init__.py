"""Tables of results: train several configurations over several seeds and compare them.

`designs` lists what can be compared. `runs` trains it and `record` reads what each run left.
`statistics` compares accuracies, `table` puts the runs into rows, and `render` and `figure` write
the rows. The command is `gluon-amp results`.
"""
