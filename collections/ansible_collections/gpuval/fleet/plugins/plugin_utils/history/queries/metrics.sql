-- The metrics of all runs. If a stage numbers GPUs otherwise than the facts, its GPUs are not in parts.
SELECT * REPLACE (
    CASE WHEN part LIKE 'gpu:%' AND (folder, node, stage) IN (SELECT (folder, node, unnest(renumbered)) FROM nodes)
    THEN part || ' as ' || stage || ' numbers it' ELSE part END AS part
) FROM {files}
