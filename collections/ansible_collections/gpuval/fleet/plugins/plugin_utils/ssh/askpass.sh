#!/bin/sh
# Prints what ssh asks for: the passphrase of a key, or the password of a node.
case "$1" in
    "Enter passphrase"*) exec cat "$GPUVAL_PASSPHRASE_FILE" ;;
    *) exec cat "$GPUVAL_PASSWORD_FILE" ;;
esac
