-- A node under this name, and under other names of the machine that has the name now.
SELECT DISTINCT m.no, m.node, NULL AS part FROM machines m
WHERE m.node = $1 OR m.machine = (SELECT machine FROM machines WHERE node = $1 ORDER BY no DESC LIMIT 1)
