-- The web shop of the demo: nine tables, each for a case that is difficult for change data capture.
-- No foreign keys: the workload changes keys and truncates on purpose, and each of its writers has its own rows.

CREATE TYPE customer_status AS ENUM ('new', 'regular', 'vip', 'closed');
CREATE TYPE order_state AS ENUM ('cart', 'placed', 'paid', 'shipped', 'returned');
CREATE TYPE mood AS ENUM ('sad', 'so-so', 'very happy', 'quo"ted, {odd}');

-- An ordinary table: a bigint key, an enum, an array, numeric, a timestamp with time zone, a nullable column.
CREATE TABLE customers (
    customer_id   bigint PRIMARY KEY,
    email         text NOT NULL,
    name          varchar(80) NOT NULL,
    status        customer_status NOT NULL,
    tags          text[] NOT NULL,
    credit        numeric(12,2) NOT NULL,
    registered_at timestamptz NOT NULL,
    note          text
);

-- Large values out of line and uncompressed: an update of another column does not send them again.
CREATE TABLE products (
    product_id  bigint PRIMARY KEY,
    sku         text NOT NULL,
    title       varchar(80) NOT NULL,
    description text,
    price       numeric(10,2) NOT NULL,
    attributes  jsonb NOT NULL,
    photo       bytea,
    stock       integer NOT NULL
);
ALTER TABLE products ALTER COLUMN description SET STORAGE EXTERNAL;
ALTER TABLE products ALTER COLUMN photo SET STORAGE EXTERNAL;

CREATE TABLE orders (
    order_id    bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    state       order_state NOT NULL,
    ordered_at  timestamptz NOT NULL,
    ship_on     date,
    total       numeric(12,2) NOT NULL
);

-- A key of two columns, which are not the first two of the table.
CREATE TABLE order_lines (
    quantity   integer NOT NULL,
    order_id   bigint NOT NULL,
    line_no    smallint NOT NULL,
    product_id bigint NOT NULL,
    price      numeric(10,2) NOT NULL,
    gift       boolean NOT NULL,
    PRIMARY KEY (order_id, line_no)
);

-- Partitioned, published through its root; rows move between partitions when happened_at changes.
CREATE TABLE events (
    event_id    bigint NOT NULL,
    happened_at timestamptz NOT NULL,
    kind        text NOT NULL,
    session_id  uuid,
    payload     jsonb,
    PRIMARY KEY (event_id, happened_at)
) PARTITION BY RANGE (happened_at);
CREATE TABLE events_2026_01 PARTITION OF events FOR VALUES FROM ('2026-01-01 00:00+00') TO ('2026-02-01 00:00+00');
CREATE TABLE events_2026_02 PARTITION OF events FOR VALUES FROM ('2026-02-01 00:00+00') TO ('2026-03-01 00:00+00');
CREATE TABLE events_2026_03 PARTITION OF events FOR VALUES FROM ('2026-03-01 00:00+00') TO ('2026-04-01 00:00+00');
CREATE TABLE events_others PARTITION OF events DEFAULT;

-- REPLICA IDENTITY FULL: every update and delete has the whole old row; the table also has a primary key.
CREATE TABLE prices (
    price_id   bigint PRIMARY KEY,
    product_id bigint NOT NULL,
    currency   char(3) NOT NULL,
    amount     numeric NOT NULL,
    valid_from timestamp NOT NULL,
    remark     text
);
ALTER TABLE prices REPLICA IDENTITY FULL;

-- No primary key at all, and rows that are exact duplicates of each other.
CREATE TABLE audit_log (
    at     timestamptz NOT NULL,
    actor  text NOT NULL,
    action text NOT NULL,
    amount numeric(12,2),
    detail text
);
ALTER TABLE audit_log REPLICA IDENTITY FULL;

-- One column of each type, with values outside the range of many target types.
CREATE TABLE type_zoo (
    id        uuid PRIMARY KEY,
    yes       boolean,
    small     smallint,
    whole     integer,
    large     bigint,
    money     numeric(12,2),
    exact     numeric,
    single    real,
    twice     double precision,
    feeling   mood,
    ints      integer[],
    texts     text[],
    feelings  mood[],
    at_zone   timestamptz,
    at_local  timestamp,
    on_day    date,
    at_time   time,
    lasting   interval,
    other_id  uuid,
    doc       jsonb,
    raw_doc   json,
    bytes     bytea,
    address   inet,
    padded    char(6),
    words     text
);

-- A text key that is sometimes changed; the table is sometimes truncated.
CREATE TABLE coupons (
    code     text PRIMARY KEY,
    discount numeric(5,2) NOT NULL,
    expires  date,
    uses     integer NOT NULL
);

CREATE PUBLICATION cdcd_shop
    FOR TABLE customers, products, orders, order_lines, events, prices, audit_log, type_zoo, coupons
    WITH (publish_via_partition_root = true);

-- Only the privileges that cdcd needs.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'cdcd') THEN
        CREATE ROLE cdcd LOGIN REPLICATION;
    END IF;
END
$$;
GRANT USAGE ON SCHEMA public TO cdcd;
GRANT SELECT ON customers, products, orders, order_lines, events, prices, audit_log, type_zoo, coupons TO cdcd;
