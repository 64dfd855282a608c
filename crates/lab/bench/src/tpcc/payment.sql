\set a 1 + :client_id % :w
\set d random(1, 10)
\set c random(1, 300)
\set amount random(1, 5000)
BEGIN;
UPDATE warehouse SET ytd = ytd + :amount WHERE w = :a;
UPDATE district SET ytd = ytd + :amount WHERE w = :a AND d = :d;
UPDATE customer SET balance = balance - :amount, paid = paid + :amount, payments = payments + 1 WHERE w = :a AND d = :d AND c = :c;
INSERT INTO history VALUES (:a, :d, :c, :amount, now(), repeat('h', 18));
END;
