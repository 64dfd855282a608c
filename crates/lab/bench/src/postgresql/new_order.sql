\set a random(1, :w)
\set d random(1, 10)
\set c random(1, 300)
\set i random_zipfian(1, 10000, 1.01)
\set k random(1, 97)
BEGIN;
UPDATE district SET next_order = next_order + 1 WHERE w = :a AND d = :d RETURNING next_order - 1 AS o \gset
SELECT balance FROM customer WHERE w = :a AND d = :d AND c = :c;
INSERT INTO orders VALUES (:a, :d, :o, :c, now());
UPDATE stock SET quantity = CASE WHEN quantity > 10 THEN quantity - 1 ELSE quantity + 91 END
    WHERE w = :a AND i IN (SELECT 1 + (:i + n * :k) % 10000 FROM generate_series(1, 10) n);
INSERT INTO order_line SELECT :a, :d, :o, 1 + (:i + n * :k) % 10000, 1 FROM generate_series(1, 10) n;
END;
