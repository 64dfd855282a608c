\set a 1 + :client_id % :w
\set k random(1, 10)
BEGIN;
WITH oldest AS (SELECT t.d, n.o FROM generate_series(1, 10) t(d),
        LATERAL (SELECT o FROM new_order WHERE w = :a AND new_order.d = t.d ORDER BY o LIMIT 1) n),
    gone AS (DELETE FROM new_order n USING oldest t WHERE n.w = :a AND n.d = t.d AND n.o = t.o RETURNING n.d, n.o),
    taken AS (UPDATE orders r SET carrier = :k FROM gone g WHERE r.w = :a AND r.d = g.d AND r.o = g.o RETURNING r.d, r.c),
    lines AS (UPDATE order_line l SET delivered = now() FROM gone g WHERE l.w = :a AND l.d = g.d AND l.o = g.o RETURNING l.d, l.amount),
    sums AS (SELECT t.d, t.c, sum(l.amount) AS amount FROM taken t JOIN lines l USING (d) GROUP BY t.d, t.c)
UPDATE customer c SET balance = balance + s.amount, deliveries = deliveries + 1 FROM sums s WHERE c.w = :a AND c.d = s.d AND c.c = s.c;
END;
