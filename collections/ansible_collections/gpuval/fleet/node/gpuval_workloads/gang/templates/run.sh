#!/bin/sh
# What gpuval ran: DeepSpeed's launcher, with the files beside this one.
export DS_ENV_FILE=$environment
export PDSH_SSH_ARGS_APPEND=$ssh_options
exec $command
