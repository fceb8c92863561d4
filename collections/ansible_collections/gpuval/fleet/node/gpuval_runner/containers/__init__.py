"""Stages in containers.

`engine` has what differs between engines and the commands that all share; `devices` how each engine hands accelerators
over; `command` makes a stage's container, `stage` runs it; `images` brings images, `brought` remembers them for clean.
"""
