"""Tables of results: train several configurations over several seeds and compare them.

`recipes` lists what can be compared. `runs` trains it and `record` reads what each run left.
`statistics` compares accuracies, `table` puts the runs into rows, `render` and `figure` write the
rows, and `imagenet` is the page of the published table. The command is `gluon-amp results`.
"""
