-- A row for each run of the chosen nodes or GPUs.
SELECT r.time, r.run_id, r.profile, c.node, m.machine, m.sku, c.part, coalesce(n.verdict, ?) AS verdict,
    n.class, coalesce(n.flaky, FALSE) AS flaky, coalesce(n.failed, []) AS failed, n.versions,
    len(n.refused) AS refused
FROM chosen c JOIN runs r USING (no) JOIN machines m ON m.no = c.no AND m.node = c.node
JOIN nodes n ON n.folder = r.folder AND n.node = c.node
ORDER BY r.no, c.node, c.part
