CREATE MATERIALIZED VIEW latest AS
SELECT key, max(seq) AS seq, max_by(value, seq) AS value, max_by(timestamp, seq) AS timestamp
FROM live
WHERE key IS NOT NULL
GROUP BY key
