-- TPC-C's nine tables, a tenth as many rows as the standard asks for: 10 districts and 3,000 customers to a warehouse, 10,000 items.
CREATE TABLE item (i int PRIMARY KEY, name text NOT NULL, price int NOT NULL, data text NOT NULL);
CREATE TABLE warehouse (w int PRIMARY KEY, name text NOT NULL, tax int NOT NULL, ytd bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE district (w int, d int, name text NOT NULL, tax int NOT NULL, ytd bigint NOT NULL, next_order bigint NOT NULL,
    PRIMARY KEY (w, d)) WITH (fillfactor = 50);
CREATE TABLE customer (w int, d int, c int, name text NOT NULL, balance bigint NOT NULL, paid bigint NOT NULL, payments int NOT NULL,
    deliveries int NOT NULL, data text NOT NULL, PRIMARY KEY (w, d, c));
CREATE TABLE history (w int, d int, c int, amount int, paid timestamptz NOT NULL, data text NOT NULL);
CREATE TABLE stock (w int, i int, quantity int NOT NULL, ytd int NOT NULL, ordered int NOT NULL, data text NOT NULL, PRIMARY KEY (w, i));
CREATE TABLE orders (w int, d int, o bigint, c int, entered timestamptz NOT NULL, carrier int, lines int NOT NULL, PRIMARY KEY (w, d, o));
CREATE TABLE new_order (w int, d int, o bigint, PRIMARY KEY (w, d, o));
CREATE TABLE order_line (w int, d int, o bigint, n int, i int, quantity int NOT NULL, amount int NOT NULL, delivered timestamptz,
    PRIMARY KEY (w, d, o, n));
INSERT INTO item SELECT i, 'item ' || i, 1 + i * 7919 % 10000, repeat('i', 38) FROM generate_series(1, 10000) i;
INSERT INTO warehouse SELECT w, 'warehouse ' || w, w * 17 % 20, 0 FROM generate_series(1, :w) w;
INSERT INTO district SELECT w, d, 'district ' || d, d * 13 % 20, 0, 301 FROM generate_series(1, :w) w, generate_series(1, 10) d;
INSERT INTO customer SELECT w, d, c, 'customer ' || c, -1000, 1000, 1, 0, repeat('c', 400)
    FROM generate_series(1, :w) w, generate_series(1, 10) d, generate_series(1, 300) c;
INSERT INTO history SELECT w, d, c, 1000, now(), repeat('h', 18) FROM customer;
INSERT INTO stock SELECT w, i, 100, 0, 0, repeat('s', 290) FROM generate_series(1, :w) w, generate_series(1, 10000) i;
INSERT INTO orders SELECT w, d, o, 1 + o * 7 % 300, now(), CASE WHEN o <= 210 THEN 1 + o % 10 END, 10
    FROM generate_series(1, :w) w, generate_series(1, 10) d, generate_series(1, 300) o;
INSERT INTO new_order SELECT w, d, o FROM orders WHERE carrier IS NULL;
INSERT INTO order_line SELECT w, d, o, n, 1 + (o * 31 + n * 97) % 10000, 5, 500, CASE WHEN carrier IS NULL THEN NULL ELSE entered END
    FROM orders, generate_series(1, 10) n;
CREATE INDEX ON orders (w, d, c, o);
VACUUM ANALYZE;
-- The files of the log are made now and used again from here on, so that nobody waits for 16 MB of zeroes while it counts.
SELECT pg_logical_emit_message(false, 'fill', ''), pg_switch_wal() FROM generate_series(1, :segments);
CHECKPOINT;
