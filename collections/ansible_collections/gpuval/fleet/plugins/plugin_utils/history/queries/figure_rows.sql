-- For each group of comparable figures the median, min and max of each run.
SELECT {names}, run_id, median(value) AS median, min(value) AS low, max(value) AS high, count(*) AS parts,
    count(DISTINCT node_key) AS nodes
FROM figures JOIN runs USING (no) JOIN groups USING (group_key) GROUP BY {names}, no, run_id
ORDER BY stage, metric, scope, unit, sku, gpus, workload, setup, no
