"""A folder of ``gpuval_extensions`` with the stage ``burn`` and the profile ``night``, as a site would write it."""

import textwrap

FILES = {
    "profiles/night.yml": """
        schema: gpuval.profile/1
        stages: [facts, burn]
        settings: {burn_seconds: 3}
    """,
    "stages/burn/defaults/main.yml": """
        burn_seconds: 2
        burn_turns: 1
        burn_workload:
          command: ["{python}", -m, gpuval_stages.burn, --seconds, "{{ burn_seconds }}", --turns, "{{ burn_turns }}"]
          environment: "{{ gpuval_environment }}"
          timeout_seconds: "{{ 60 + burn_seconds | float * 2 }}"
          expected_seconds: "{{ burn_seconds | float }}"
          needs: [facts]
          retry: [crash]
    """,
    "stages/burn/meta/argument_specs.yml": """
        argument_specs:
          main:
            short_description: Stage that counts
            options:
              burn_seconds: {description: Time to count., type: float, default: 2}
              burn_turns: {description: Turns to report., type: int, default: 1}
              burn_workload: {description: Declaration of the stage., type: dict}
    """,
    "stages/burn/files/criteria.yml": """
        schema: gpuval.criteria/1
        stage: burn
        checks:
          - name: burn_turned
            metric: burn_turns_count
            kind: min
            value: 1
            unit: count
            severity: required
            source: A loop turns.
            remedy: Replace the loop.
    """,
    "stages/burn/files/failures.yml": """
        schema: gpuval.failures/1
        groups:
          criteria:
            - {name: burn_turned, subject: node, action: gpu_damage}
            - {name: burn_*, subject: node, action: part_slow}
    """,
    "stages/burn/files/stage.yml": """
        schema: gpuval.stage/1
        gpus: none
        shortened_by: [burn_turns]
        bounds: {burn_seconds: {more_than: 0, at_most: 3600}}
        figures:
          - metric: burn_turns_count
            line: Turns
            summary: "{} turned"
            in_table: true
            gauge: {name: gpuval_burn_turns, unit: count, help: Turns of the site's loop.}
        ranges:
          - {metrics: [burn_turns_count], unit: count, high: 1000}
        comparisons:
          - {metrics: [burn_turns_count], worse: lower, margin: 0.05}
        implicates:
          slowest_gpu: [burn_turns_*]
    """,
    "stages/burn/files/coherence.yml": """
        schema: gpuval.coherence/1
        rules:
          - name: burn_seconds_planned
            says: the program counts as long as it is told
            of: [burn_seconds]
            over: [plan.seconds]
            low: 0.99
            high: 1.01
            healthy: [1, 1]
    """,
    "stages/burn/program/__init__.py": "",
    "stages/burn/program/__main__.py": """
        import argparse
        import os
        import sys

        from gpuval_workloads.common.result import run_workload

        from .words import DONE

        parser = argparse.ArgumentParser()
        parser.add_argument("--seconds", type=float)
        parser.add_argument("--turns", type=int)
        arguments = parser.parse_args()


        def main(result):
            if os.environ.get("BURN_CRASHES"):
                sys.exit(3)
            result.add_metric("burn_turns_count", arguments.turns, "count")
            result.add_metric("burn_seconds", arguments.seconds, "seconds")
            print(DONE)


        sys.exit(run_workload(main))
    """,
    "stages/burn/program/words.py": 'DONE = "burned by the site\'s own program"\n',
}


def write_extension(folder, files=None):
    """Write the files below a folder that only its owner can write. Returns the folder."""
    for name, text in (FILES if files is None else files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder
