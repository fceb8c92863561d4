-- Every verdict on the machines of the chosen nodes, by machine and in the order of the runs.
SELECT m.machine, m.node, r.run_id, r.profile, list_sort(m.stages), n.verdict, n.flaky, coalesce(g.gpus, [])
FROM (SELECT DISTINCT machine FROM machines JOIN chosen USING (no, node)) own
JOIN machines m USING (machine) JOIN runs r USING (no)
JOIN nodes n ON n.folder = r.folder AND n.node = m.node AND n.verdict IS NOT NULL
LEFT JOIN (SELECT no, node, list(gpu) AS gpus FROM parts GROUP BY ALL) g ON g.no = m.no AND g.node = m.node
WHERE r.shown ORDER BY m.machine, r.no
