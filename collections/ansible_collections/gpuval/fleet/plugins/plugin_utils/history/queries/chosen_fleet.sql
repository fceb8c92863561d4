-- All nodes.
SELECT no, node, NULL AS part FROM machines WHERE $1 = ''
