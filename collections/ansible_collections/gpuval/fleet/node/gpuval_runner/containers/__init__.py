"""Stages in containers: `command` makes a container, `stage` runs it; `images` brings images, `brought` lists them."""
