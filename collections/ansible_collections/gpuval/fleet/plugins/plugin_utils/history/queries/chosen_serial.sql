-- A machine by its serial or machine id, or a GPU by any of its identities.
SELECT m.no, m.node, NULL AS part FROM machines m
WHERE lower(m.machine) IN ('serial ' || lower($1), 'machine ' || lower($1))
UNION SELECT no, node, 'gpu:' || "index" FROM parts
WHERE gpu IN (SELECT gpu FROM parts WHERE lower($1) IN (lower(gpu), lower(serial), lower(uuid)))
