"""Facts of a machine: accelerators, CPU, memory, disks, network, clock and software. Standard library and relative
imports only: the same files serve the Ansible module `gpu_facts` and the runner."""
