\set a 1 + :client_id % :w
\set d random(1, 10)
\set q random(10, 20)
BEGIN;
SELECT next_order AS o FROM district WHERE w = :a AND d = :d \gset
SELECT count(DISTINCT s.i) FROM order_line l JOIN stock s ON s.w = l.w AND s.i = l.i
    WHERE l.w = :a AND l.d = :d AND l.o >= :o - 20 AND l.o < :o AND s.quantity < :q;
END;
