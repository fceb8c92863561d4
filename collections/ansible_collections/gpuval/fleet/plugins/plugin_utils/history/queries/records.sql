-- The chosen stages of all judged runs, for databases and notebooks: a row for each stage of a node.
WITH own AS (SELECT DISTINCT no, node FROM chosen), measured AS (
    SELECT c.no, m.node, m.stage, list({{'name': m.metric, 'unit': m.unit, 'part': m.part, 'gpu': p.gpu,
        'value': m.value}} ORDER BY m.metric, m.part) AS metrics
    FROM chosen c JOIN runs r USING (no) JOIN metrics m ON m.folder = r.folder AND m.node = c.node {wanted}
    LEFT JOIN parts p ON p.no = c.no AND p.node = c.node AND m.part = 'gpu:' || p."index"
    WHERE coalesce(c.part = m.part, TRUE) GROUP BY ALL
)
SELECT r.run_id || '/' || rec.node || '/' || rec.stage AS _id, r.run_id, {time} AS "time", r.profile, rec.node,
    k.machine, k.sku, {labels} AS labels, rec.stage, rec.workload, rec.state, rec.retried, {versions} AS versions,
    n.verdict, n.class, n.flaky, coalesce(x.metrics, []) AS metrics
FROM own o JOIN runs r USING (no) JOIN records rec ON rec.folder = r.folder AND rec.node = o.node
JOIN machines k ON k.no = o.no AND k.node = o.node JOIN nodes n ON n.folder = r.folder AND n.node = o.node
LEFT JOIN measured x ON x.no = o.no AND x.node = o.node AND x.stage = rec.stage
ORDER BY o.no, rec.node, rec.stage
