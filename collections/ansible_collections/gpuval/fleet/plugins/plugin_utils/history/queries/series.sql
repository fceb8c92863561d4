-- The series of figures over runs, of parts or of the medians of all nodes of a kind. The figures of a series whose
-- values differ by less than the least drift stay in DuckDB: it cannot drift by more.
CREATE OR REPLACE TEMP TABLE series AS
WITH per_run AS (
    SELECT group_key, {subject}::UBIGINT AS subject_key, no, {value} AS value
    FROM figures GROUP BY ALL {condition}
), placed AS (
    SELECT *, row_number() OVER (PARTITION BY group_key, subject_key ORDER BY no) - 1 AS place FROM per_run
), summed AS (
    SELECT group_key, subject_key, abs(median(value)) AS middle, max(value) - min(value) AS width,
        sqrt(greatest(regr_syy(value, place) - regr_sxy(value, place) ** 2 / regr_sxx(value, place), 0)
            / (count(*) - 2)) AS scatter,
        CASE WHEN max(value) - min(value) > {min_total} * abs(median(value)) THEN list(value ORDER BY no) END AS figures
    FROM placed GROUP BY group_key, subject_key HAVING count(*) >= {min_runs} AND median(value) <> 0
)
SELECT group_key, subject_key, figures, CASE WHEN count(*) OVER sisters >= {min_sisters}
    THEN median(scatter / middle) OVER sisters ELSE 0 END AS floor
FROM summed WINDOW sisters AS (PARTITION BY group_key)
