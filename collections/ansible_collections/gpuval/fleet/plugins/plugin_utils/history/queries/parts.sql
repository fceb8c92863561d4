-- The GPU behind each part of each node in each run: no, node, index, gpu, serial, uuid, machine.
-- A GPU is identified by its serial, its UUID, or its index in the machine.
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
