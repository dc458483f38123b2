"""Which operators' second backward pass differs, which write their inputs, and which draw numbers.

`registered` lists MXNet's operators, `calls` how each can be called, `measure` calls them, and
`programs` has what a call of one operator does not show: loops, code of users, and cast nets.
"""
