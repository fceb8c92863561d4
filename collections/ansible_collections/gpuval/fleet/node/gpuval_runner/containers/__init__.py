"""Stages in containers: `command` makes one, `stage` runs it; `images` brings images, `brought` remembers them."""
