\set a 1 + :client_id % :w
\set d random(1, 10)
\set c random(1, 300)
\set n random(5, 15)
\set i random_zipfian(1, 10000, 1.01)
\set k random(1, 97)
BEGIN;
SELECT tax FROM warehouse WHERE w = :a;
UPDATE district SET next_order = next_order + 1 WHERE w = :a AND d = :d RETURNING next_order - 1 AS o \gset
SELECT balance FROM customer WHERE w = :a AND d = :d AND c = :c;
INSERT INTO orders VALUES (:a, :d, :o, :c, now(), NULL, :n);
INSERT INTO new_order VALUES (:a, :d, :o);
SELECT sum(price) FROM item WHERE i IN (SELECT 1 + (:i + x * :k) % 10000 FROM generate_series(1, :n) x);
UPDATE stock SET quantity = CASE WHEN quantity > 14 THEN quantity - 5 ELSE quantity + 86 END, ytd = ytd + 5, ordered = ordered + 1
    WHERE w = :a AND i IN (SELECT 1 + (:i + x * :k) % 10000 FROM generate_series(1, :n) x);
INSERT INTO order_line SELECT :a, :d, :o, x, 1 + (:i + x * :k) % 10000, 5, 500, NULL FROM generate_series(1, :n) x;
END;
