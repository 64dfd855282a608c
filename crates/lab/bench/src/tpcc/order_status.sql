\set a 1 + :client_id % :w
\set d random(1, 10)
\set c random(1, 300)
BEGIN;
SELECT balance, name FROM customer WHERE w = :a AND d = :d AND c = :c;
SELECT l.i, l.quantity, l.amount, l.delivered FROM order_line l WHERE l.w = :a AND l.d = :d
    AND l.o = (SELECT max(o) FROM orders WHERE w = :a AND d = :d AND c = :c);
END;
