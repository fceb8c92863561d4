-- All nodes of a SKU.
SELECT no, node, NULL AS part FROM machines WHERE lower(sku) = lower($1)
