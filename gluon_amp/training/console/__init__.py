"""The commands of `gluon-amp`, one in each module.

Each has a function ``main(arguments, prog)``, which returns the exit status: `arguments` are those
after the command's name, or None for those of the process; `prog` is the program's name in its help
and errors. `gluon_amp_console` lists the commands.
"""
