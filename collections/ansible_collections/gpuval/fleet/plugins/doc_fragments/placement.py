# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How plans get to nodes, and how long each step may take."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  placement:
    description:
      - V(ssh) starts a detached runner on each host; V(kubernetes) creates a Job for each node;
        V(slurm) submits a job for each node.
      - Options that name SSH or pods have no effect with the other placement.
    type: str
    choices: [ssh, kubernetes, slurm]
    default: ssh
  launch_seconds:
    description: Time limit of one launch over SSH.
    type: float
    default: 180.0
  fetch_seconds:
    description: Time limit of fetching the evidence of one node over SSH.
    type: float
    default: 300.0
  send_seconds:
    description: Time limit of sending images to one node over SSH, where the store does not have them.
    type: float
    default: 3600.0
  patience_seconds:
    description:
      - How long a pod may lack its image, placement, volumes or node before the node is given up.
      - States that resolve soon or never (a quota, a container that cannot be created) get two fifths of that.
      - V(0) waits until the run's deadline.
    type: float
    default: 300.0
  start_seconds:
    description:
      - How long a scheduled pod may lack a running container without a reported cause, as with a large image.
      - V(0) waits until the run's deadline.
    type: float
    default: 1800.0
  admission_seconds:
    description:
      - How long a Job may wait for its queue before the node is given up.
      - V(0) waits until the run's deadline.
    type: float
    default: 0.0
"""
