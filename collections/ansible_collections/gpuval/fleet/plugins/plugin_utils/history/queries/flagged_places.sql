-- For each drift where its figure was measured, in the order of the runs; nodes and machines not for a whole SKU.
SELECT one, run_id, CASE WHEN fleet THEN NULL ELSE node END, CASE WHEN fleet THEN NULL ELSE machine END, part, gpu,
    count(DISTINCT node)
FROM flagged_runs GROUP BY ALL ORDER BY one, min(no)
