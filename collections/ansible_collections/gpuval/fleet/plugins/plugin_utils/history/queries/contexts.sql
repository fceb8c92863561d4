-- Each chosen node and stage that ended well, with all that figures are compared by.
CREATE OR REPLACE TEMP TABLE contexts AS
SELECT r.no, r.folder, k.node, rec.stage, k.machine, k.sku, k.gpu_count AS gpus, rec.workload, rec.setup,
    c.part AS only_part
FROM records rec SEMI JOIN wanted USING (stage) JOIN runs r USING (folder)
JOIN machines k ON k.no = r.no AND k.node = rec.node JOIN chosen c ON c.no = r.no AND c.node = rec.node
WHERE rec.state = 'success'
