#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ansible module `gpuval.fleet.gpu_facts`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Gather the hardware and software of a GPU node
version_added: 1.0.0
description:
  - Gathers accelerators, CPU, memory, disks, network, operating system, clock, container engines and firmware.
  - NVIDIA GPUs are read with C(nvidia-smi), AMD GPUs with C(amd-smi) or C(rocm-smi), Intel Gaudi with C(hl-smi).
  - What these tools list is compared with the PCI bus, so that GPU hardware without a working driver is seen and never
    counted as a CPU node.
options:
  root:
    description:
      - Directory whose C(sys), C(proc) and C(etc) are read.
      - Unless it is V(/), the vendors' tools are looked for only in C(bin) and C(usr/bin) below it.
    type: path
    default: /
  accelerator:
    description:
      - What the node is declared to be.
      - V(auto) takes what is found; hardware without a working driver makes RV(state) V(failure).
      - V(cpu) ignores GPU hardware.
      - With a vendor, RV(state) is V(failure) unless usable GPUs of this vendor are found.
    type: str
    choices: [auto, cpu, nvidia, amd, gaudi]
    default: auto
extends_documentation_fragment: [gpuval.fleet.common]
attributes:
  check_mode:
    description: It only reads.
  diff_mode:
    support: N/A
    description: Nothing is ever changed.
  facts:
    description: Returns an C(ansible_facts) dictionary that is added to the facts of the host.
    support: full
notes:
  - Serial numbers of the firmware can be read only by root and are null for other users.
  - A tool that does not answer within a minute counts as a driver that does not work.
seealso:
  - module: ansible.builtin.setup
"""

EXAMPLES = r"""
- name: Gather the hardware
  gpuval.fleet.gpu_facts:

- name: Show what the node has
  ansible.builtin.debug:
    msg: >-
      {{ ansible_facts['gpuval_hardware']['accelerator']['count'] }} GPU(s) of
      {{ ansible_facts['gpuval_hardware']['accelerator']['vendor'] }}

- name: Stop where GPU hardware has no working driver
  gpuval.fleet.gpu_facts:
  register: hardware
  failed_when: hardware.state == 'failure'
"""

RETURN = r"""
ansible_facts:
  description: Facts to add to those of the host.
  returned: always
  type: dict
  contains:
    gpuval_hardware:
      description: Hardware and software of the node. Sizes are in base units; null is what is not known.
      returned: always
      type: dict
      contains:
        accelerator:
          description: >-
            Vendor (V(nvidia), V(amd), V(gaudi) or V(cpu)), count of usable GPUs, of those on the PCI bus, of those
            without a working driver, and what the vendor's tool complained of.
          type: dict
        identity:
          description: What tells the machine from all others, its machine id, serial number and GPU UUIDs.
          type: dict
        gpus:
          description: Usable GPUs with name, UUID, serial number, PCI address, versions, memory, power and errors.
          type: list
          elements: dict
        cpu:
          description: Model, sockets, cores, NUMA nodes and frequency governor.
          type: dict
        memory:
          description: Total and available memory, and the errors that its controllers counted.
          type: dict
        tuning:
          description: Clock source, huge pages, latency of the deepest idle state in use, and kinds of IOMMU groups.
          type: dict
        imex:
          description: State of the service for memory across nodes (NVIDIA IMEX), its configured nodes and its domain.
          type: dict
        disks:
          description: Disks (C(kind) V(disk)) and local file systems (V(filesystem)).
          type: list
          elements: dict
        nics:
          description: Network interfaces (C(kind) V(interface)) and RDMA devices (V(rdma)).
          type: list
          elements: dict
        network_ports:
          description: Fast network ports with their optical modules or cables, error correction and losses of the link.
          type: list
          elements: dict
        left_out:
          description: What could not be read of them, and why.
          type: dict
        os:
          description: Distribution, kernel, boot id, and the kind of container, if it is one.
          type: dict
        clock:
          description: Whether the clock is synchronised (null when unknown), and the source.
          type: dict
        engines:
          description: Versions of container engines, and CDI specifications.
          type: dict
        firmware:
          description: System, board, BIOS and BMC as the firmware names them.
          type: dict
        pci_accelerators:
          description: GPU hardware by PCI address with its kernel driver and state.
          type: list
          elements: dict
        topology:
          description: What joins each GPU with the others and with its nearest NIC.
          type: list
          elements: dict
        peer_access:
          description: GPUs whose addresses the IOMMU translates, and ports of PCIe switches that redirect (ACS).
          type: dict
        services:
          description: Services of systemd that are active or failed, and mount points.
          type: dict
state:
  description: V(failure) when GPU hardware has no working driver or is not what was declared, else V(success).
  returned: always
  type: str
  sample: success
msg:
  description: One line that says what was found, or what is wrong and what to do next.
  returned: always
  type: str
  sample: 8 x NVIDIA H200; driver 570.133.20
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.collect import facts_result


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "accelerator": {
                "type": "str",
                "choices": ["auto", "cpu", "nvidia", "amd", "gaudi"],
                "default": "auto",
            },
        },
        supports_check_mode=True,
    )
    result = facts_result(module.params["root"], module.params["accelerator"])
    module.exit_json(
        changed=False,
        state=result["state"],
        msg=result["message"],
        ansible_facts={"gpuval_hardware": result["environment"]},
    )


if __name__ == "__main__":
    main()
