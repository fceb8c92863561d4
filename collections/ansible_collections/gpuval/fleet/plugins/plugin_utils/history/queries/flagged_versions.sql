-- For each drift and run the values of each property of its nodes and of its stage.
WITH reported AS (
    SELECT f.one, f.run_id, unnest(map_entries(coalesce(of.versions, MAP {{}}))) AS entry
    FROM flagged_runs f JOIN (
        SELECT folder, node, 'facts' AS stage, versions FROM nodes
        UNION ALL SELECT folder, node, stage, versions FROM records
    ) of ON of.folder = f.folder AND of.node = f.node AND of.stage IN ('facts', f.stage)
)
SELECT one, run_id, entry.key, list_sort(list(DISTINCT entry.value)) FROM reported GROUP BY ALL
