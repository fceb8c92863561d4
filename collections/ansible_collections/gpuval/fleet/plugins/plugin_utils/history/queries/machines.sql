-- The machine behind each node name in each run: no, node, machine, sku, gpu_count, stages; a row for every expected node.
-- A machine is identified by its serial; by its machine id if it has no serial or only one serial ever came with that id;
-- by the node's name if its facts have neither. An identity shared by two nodes of one run is a cloned disk or a
-- placeholder, and is ignored. In a run without facts, a name keeps its machine of the run before, else of the run after.
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
