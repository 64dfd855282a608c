-- A rough TPC-C: 10 districts, 3,000 customers and 10,000 items of stock to a warehouse.
CREATE TABLE warehouse (w int PRIMARY KEY, ytd bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE district (w int, d int, next_order bigint NOT NULL, ytd bigint NOT NULL, PRIMARY KEY (w, d)) WITH (fillfactor = 50);
CREATE TABLE customer (w int, d int, c int, balance bigint NOT NULL, data text NOT NULL, PRIMARY KEY (w, d, c));
CREATE TABLE stock (w int, i int, quantity int NOT NULL, data text NOT NULL, PRIMARY KEY (w, i));
CREATE TABLE orders (w int, d int, o bigint, c int, entered timestamptz NOT NULL, PRIMARY KEY (w, d, o));
CREATE TABLE order_line (w int, d int, o bigint, i int, quantity int NOT NULL);
CREATE TABLE history (w int, d int, c int, amount int, paid timestamptz NOT NULL, data text NOT NULL);
INSERT INTO warehouse SELECT w, 0 FROM generate_series(1, :w) w;
INSERT INTO district SELECT w, d, 1, 0 FROM generate_series(1, :w) w, generate_series(1, 10) d;
INSERT INTO customer
    SELECT w, d, c, 0, repeat('c', 250) FROM generate_series(1, :w) w, generate_series(1, 10) d, generate_series(1, 300) c;
INSERT INTO stock SELECT w, i, 100, repeat('s', 280) FROM generate_series(1, :w) w, generate_series(1, 10000) i;
CREATE INDEX ON order_line (w, d, o);
VACUUM ANALYZE;
CHECKPOINT;
