-- The figures of the chosen nodes. There are millions, so they refer to node, group and subject by hash.
CREATE OR REPLACE TEMP TABLE figures AS
SELECT c.no, hash(c.node) AS node_key, m.part, m.value,
    hash(coalesce(p.gpu, c.machine || ' ' || m.part)) AS subject_key,
    hash(m.stage, m.metric, m.unit, split_part(m.part, ':', 1), c.sku, c.gpus, c.workload, {setup}) AS group_key
FROM (SELECT * FROM metrics SEMI JOIN wanted USING (stage, metric) WHERE {units}) m
JOIN contexts c ON c.folder = m.folder AND c.node = m.node AND c.stage = m.stage
LEFT JOIN parts p ON p.no = c.no AND p.node = c.node AND m.part = 'gpu:' || p."index"
WHERE (m.value = 0 OR abs(m.value) BETWEEN {least} AND {most}) AND coalesce(c.only_part = m.part, TRUE)
