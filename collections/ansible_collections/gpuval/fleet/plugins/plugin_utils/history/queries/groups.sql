-- The groups of comparable figures. Their setup begins with the revision of the definition, unless that is the first.
CREATE OR REPLACE TEMP TABLE groups AS
SELECT *, hash(stage, metric, unit, scope, sku, gpus, workload, setup) AS group_key FROM (
    SELECT DISTINCT stage, metric, unit, scope, sku, gpus, workload, {setup} AS setup FROM (
        SELECT DISTINCT stage, metric, unit, revision, split_part(part, ':', 1) AS scope
        FROM metrics SEMI JOIN wanted USING (stage, metric) WHERE {units}
    ) m JOIN (SELECT DISTINCT stage, sku, gpus, workload, setup FROM contexts) c USING (stage)
)
