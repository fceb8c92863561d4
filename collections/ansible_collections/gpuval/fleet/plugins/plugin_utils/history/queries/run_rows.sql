-- A row for each run: the number of the chosen nodes by verdict, and their drivers and firmware.
SELECT r.time, r.run_id, r.profile, count(*) AS nodes, count(*) FILTER (n.verdict = 'PASS') AS "PASS",
    count(*) FILTER (n.verdict = 'FAIL') AS "FAIL", count(*) FILTER (n.verdict = 'INCOMPLETE') AS "INCOMPLETE",
    count(*) FILTER (n.verdict IS NULL) AS not_judged, count(*) FILTER (n.flaky) AS flaky,
    list_sort(list(DISTINCT m.sku)) AS skus,
    coalesce(list_sort(list(DISTINCT n.versions['driver']) FILTER (n.versions['driver'] IS NOT NULL)), []) AS driver,
    coalesce(list_sort(list(DISTINCT n.versions['vbios']) FILTER (n.versions['vbios'] IS NOT NULL)), []) AS firmware,
    sum(len(n.refused))::INTEGER AS refused
FROM chosen c JOIN runs r USING (no) JOIN machines m ON m.no = c.no AND m.node = c.node
JOIN nodes n ON n.folder = r.folder AND n.node = c.node
GROUP BY r.no, r.time, r.run_id, r.profile ORDER BY r.no
