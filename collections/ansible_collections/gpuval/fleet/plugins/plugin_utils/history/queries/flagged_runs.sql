-- The runs, nodes and parts behind each drift in the table flagged.
CREATE OR REPLACE TEMP TABLE flagged_runs AS
SELECT DISTINCT f.one, f.fleet, g.stage, x.no, r.run_id, r.folder, k.node, k.machine,
    CASE WHEN NOT f.fleet THEN x.part END AS part, p.gpu
FROM flagged f JOIN groups g USING (group_key)
JOIN figures x ON x.group_key = f.group_key AND (f.fleet OR x.subject_key = f.subject_key)
JOIN runs r ON r.no = x.no
JOIN machines k ON k.no = x.no AND hash(k.node) = x.node_key
LEFT JOIN parts p ON NOT f.fleet AND p.no = x.no AND p.node = k.node AND x.part = 'gpu:' || p."index"
