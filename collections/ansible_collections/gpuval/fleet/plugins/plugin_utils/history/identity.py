"""The machine behind each node name in each run, and the GPU behind each part: SQL over the cached reports. A machine
is identified by its serial; by its machine id if it has no serial or only one serial ever came with that id; by the
node's name if its facts have neither. An identity shared by two nodes of one run is a cloned disk or a placeholder, and
is ignored. In a run without facts, a name keeps its machine of the run before, else of the run after. A GPU is
identified by its serial, its UUID, or its index in the machine."""

from __future__ import annotations

from typing import Any

_MACHINES = """
CREATE OR REPLACE TEMP TABLE machines AS
WITH facts AS (
    SELECT r.no, n.node, n.sku, n.stages, n.kind, n.gpu_count, n.serial, n.machine_id
    FROM nodes n JOIN runs r USING (folder)
), shared AS (
    SELECT 'serial ' || serial AS word FROM facts WHERE serial IS NOT NULL GROUP BY no, serial HAVING count(*) > 1
    UNION SELECT 'machine ' || machine_id FROM facts WHERE machine_id IS NOT NULL
        GROUP BY no, machine_id HAVING count(*) > 1
), own AS (
    SELECT * REPLACE (
        CASE WHEN 'serial ' || serial NOT IN (SELECT word FROM shared) THEN serial END AS serial,
        CASE WHEN 'machine ' || machine_id NOT IN (SELECT word FROM shared) THEN machine_id END AS machine_id
    ) FROM facts
), alias AS (
    SELECT machine_id, min(serial) AS known_serial FROM own
    WHERE machine_id IS NOT NULL AND serial IS NOT NULL GROUP BY machine_id HAVING count(DISTINCT serial) = 1
), reported AS (
    SELECT own.*,
        coalesce('serial ' || serial, 'serial ' || known_serial, 'machine ' || own.machine_id) AS machine
    FROM own LEFT JOIN alias USING (machine_id)
), guessed AS (
    SELECT *, CASE WHEN machine IS NULL THEN coalesce(
            last_value(machine IGNORE NULLS) OVER before, first_value(machine IGNORE NULLS) OVER after) END AS guess,
        coalesce(last_value(kind IGNORE NULLS) OVER before, first_value(kind IGNORE NULLS) OVER after) AS kind_beside
    FROM reported
    WINDOW before AS (PARTITION BY node ORDER BY no ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW),
        after AS (PARTITION BY node ORDER BY no ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
), free AS (
    SELECT g.*, used.machine IS NULL AND count(*) OVER (PARTITION BY g.no, g.guess) = 1 AS usable
    FROM guessed g LEFT JOIN (SELECT DISTINCT no, machine FROM reported WHERE machine IS NOT NULL) used
        ON used.no = g.no AND used.machine = g.guess
)
SELECT no, node, stages, gpu_count, coalesce(machine, CASE WHEN usable THEN guess END, 'node ' || node) AS machine,
    coalesce(kind, CASE WHEN usable THEN kind_beside END, sku) AS sku
FROM free
"""

_GPUS = """
CREATE OR REPLACE TEMP TABLE parts AS
WITH listed AS (
    SELECT no, node, unnest(gpus, max_depth := 2) FROM nodes JOIN runs USING (folder)
), shared AS (
    SELECT 'serial ' || serial AS word FROM listed WHERE serial IS NOT NULL GROUP BY no, serial HAVING count(*) > 1
    UNION SELECT 'uuid ' || uuid FROM listed WHERE uuid IS NOT NULL GROUP BY no, uuid HAVING count(*) > 1
), own AS (
    SELECT no, node, "index",
        CASE WHEN 'serial ' || serial NOT IN (SELECT word FROM shared) THEN serial END AS serial,
        CASE WHEN 'uuid ' || uuid NOT IN (SELECT word FROM shared) THEN uuid END AS uuid
    FROM listed
), alias AS (
    SELECT uuid, min(serial) AS serial FROM own
    WHERE uuid IS NOT NULL AND serial IS NOT NULL GROUP BY uuid HAVING count(DISTINCT serial) = 1
)
SELECT own.no, own.node, own."index", own.serial, own.uuid, m.machine,
    coalesce(own.serial, alias.serial, own.uuid, m.machine || ' gpu:' || own."index") AS gpu
FROM own JOIN machines m ON m.no = own.no AND m.node = own.node LEFT JOIN alias ON own.uuid = alias.uuid
QUALIFY row_number() OVER (PARTITION BY own.no, own.node, own."index" ORDER BY gpu) = 1
"""


def resolve(connection: Any) -> None:
    """Make the tables ``machines`` and ``parts`` from ``runs`` and ``nodes``.

    machines: no, node, machine, sku, gpu_count, stages; a row for every expected node of every run. parts: no, node,
    index, gpu, serial, uuid, machine.
    """
    for statement in (_MACHINES, _GPUS):
        connection.execute(statement)
